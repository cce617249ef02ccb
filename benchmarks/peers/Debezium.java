// Counts the records of Debezium's embedded engine, as benchmarks/_mysql_peers.py asks for it. Nothing converts them.

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import java.io.ObjectOutputStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

public class Debezium {
    static long rows, before;
    static long began, ended;
    static double cpuBefore, cpuAfter;

    static double cpu() {
        var bean = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return bean.getProcessCpuTime() / 1e9;
    }

    // host port user password file offset gtids rows bytes seconds_max folder
    public static void main(String[] told) throws Exception {
        long wanted = Long.parseLong(told[7]);
        double bytes = Double.parseDouble(told[8]);
        double secondsMax = Double.parseDouble(told[9]);
        Path folder = Path.of(told[10]);
        // Where it begins: what it would itself have written down when it last stopped.
        Map<byte[], byte[]> offsets = new HashMap<>();
        offsets.put(bytesOf("[\"bench\",{\"server\":\"bench\"}]"),
            bytesOf("{\"ts_sec\":0,\"file\":\"" + told[4] + "\",\"pos\":" + told[5]
                + ",\"gtids\":\"" + told[6] + "\"}"));
        try (var out = new ObjectOutputStream(Files.newOutputStream(folder.resolve("offsets")))) {
            out.writeObject(offsets);
        }
        Properties options = new Properties();
        String[][] given = {
            {"name", "bench"}, {"topic.prefix", "bench"},
            {"connector.class", "io.debezium.connector.mysql.MySqlConnector"},
            {"database.hostname", told[0]}, {"database.port", told[1]},
            {"database.user", told[2]}, {"database.password", told[3]}, {"database.server.id", "4000002"}, {"database.ssl.mode", "disabled"},
            {"driver.allowPublicKeyRetrieval", "true"},
            {"database.include.list", "bench"}, {"table.include.list", "bench.orders"},
            {"snapshot.mode", "recovery"}, {"snapshot.locking.mode", "none"},
            {"offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore"},
            {"offset.storage.file.filename", folder.resolve("offsets").toString()},
            {"offset.flush.interval.ms", "60000"},
            {"schema.history.internal", "io.debezium.storage.file.history.FileSchemaHistory"},
            {"schema.history.internal.file.filename", folder.resolve("history").toString()},
            {"max.batch.size", "8192"}, {"max.queue.size", "32768"}, {"poll.interval.ms", "1"},
            {"include.schema.changes", "false"}, {"tombstones.on.delete", "false"},
        };
        for (String[] each : given) {
            options.setProperty(each[0], each[1]);
        }
        var engine = DebeziumEngine.create(Connect.class).using(options)
            .using((success, message, error) -> tell("{\"error\": \"" + (message + " " + error).replace('"', '\'') + "\"}"))
            .notifying((records, committer) -> {
                if (rows == 0) {
                    began = System.nanoTime();
                    cpuBefore = cpu();
                    before = records.size();
                }
                rows += records.size();
                ended = System.nanoTime();
                committer.markBatchFinished();
                double seconds = (ended - began) / 1e9;
                if (rows >= wanted || seconds >= secondsMax) {
                    long count = rows - before;
                    tell(String.format(java.util.Locale.ROOT, "{\"rows\": %d, \"seconds\": %f, \"cpu_s\": %f, \"bytes\": %f}",
                        count, seconds, cpu() - cpuBefore, bytes * count / wanted));
                }
            }).build();
        engine.run();
    }

    static byte[] bytesOf(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static synchronized void tell(String answer) {
        System.out.println(answer);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
