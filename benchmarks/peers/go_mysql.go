// Counts the rows of a server's log with go-mysql's BinlogSyncer, as benchmarks/_mysql_peers.py asks for it; or says how
// late each row came, as benchmarks/live_mysql.py does.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

type told struct {
	Host, User, Password, File, Flavor string
	Port                               uint16
	Offset                             uint32
	Rows, Bytes                        int64
	Seconds                            float64 `json:"seconds_max"`
	Live                               bool
}

func cpu() float64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return float64(used.Utime.Sec+used.Stime.Sec) + float64(used.Utime.Usec+used.Stime.Usec)/1e6
}

func main() {
	var backlog told
	if err := json.NewDecoder(os.Stdin).Decode(&backlog); err != nil {
		fail(err)
	}
	syncer := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: 4000001, Flavor: backlog.Flavor, Host: backlog.Host, Port: backlog.Port, User: backlog.User,
		Password: backlog.Password, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	streamer, err := syncer.StartSync(mysql.Position{Name: backlog.File, Pos: backlog.Offset})
	if err != nil {
		fail(err)
	}
	if backlog.Live {
		live(streamer)
	}
	var rows, before int64
	var began time.Time
	var cpuBefore float64
	for rows < backlog.Rows && (rows == 0 || time.Since(began).Seconds() < backlog.Seconds) {
		event, err := streamer.GetEvent(context.Background())
		if err != nil {
			fail(err)
		}
		found, isRows := event.Event.(*replication.RowsEvent)
		if !isRows {
			continue
		}
		images := int64(1)
		switch event.Header.EventType {
		case replication.UPDATE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv2:
			images = 2
		}
		count := int64(len(found.Rows)) / images
		if rows == 0 {
			began, cpuBefore, before = time.Now(), cpu(), count
		}
		rows += count
	}
	seconds := time.Since(began).Seconds()
	share := float64(rows-before) / float64(backlog.Rows)
	tell(map[string]any{"rows": rows - before, "seconds": seconds, "cpu_s": cpu() - cpuBefore, "bytes": share * float64(backlog.Bytes)})
}

// The second column of a row is when it was written, the third says which is the last.
func live(streamer *replication.BinlogStreamer) {
	fmt.Println("{}")
	lags := []int64{}
	cpuBefore := cpu()
	for {
		event, err := streamer.GetEvent(context.Background())
		if err != nil {
			fail(err)
		}
		found, isRows := event.Event.(*replication.RowsEvent)
		if !isRows {
			continue
		}
		now := time.Now().UnixMicro()
		for _, row := range found.Rows {
			if row[2] == "end" {
				tell(map[string]any{"lags_us": lags, "cpu_s": cpu() - cpuBefore})
			}
			lags = append(lags, now-row[1].(int64))
		}
	}
}

func tell(answer map[string]any) {
	_ = json.NewEncoder(os.Stdout).Encode(answer)
	os.Exit(0)
}

func fail(err error) {
	tell(map[string]any{"error": fmt.Sprint(err)})
}
