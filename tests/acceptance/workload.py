"""Several sessions that do to a server what applications do, and what they should not, as dice say.

One thread lets the sessions take turns, so that a seed gives the same statements again. Whether a statement succeeds is
the server's affair: what it refuses is counted and passed over, and so is a session that it throws out. No session
knows what should be in the tables at the end; only the server does.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pymysql

from databus.testing.servers import Server

SESSIONS = 4
KEYS_MAX = 40
TABLES: Mapping[str, Sequence[str]] = {
    "mark": ("id",), "a": ("id",), "b": ("k", "n"), "c": ("id",), "m": ("id",), "words": ("id",), "journal": (),
    "large": ("id",), "copy": ("id",), "made": ("id",), "other": ("id",), "counted": ("id",),
}  # fmt: skip
_ALPHABETS = (  # the low quotation mark is one of latin1, and was mistaken by codecs
    "abc XYZ", "äöüßéñ", "żółć", "жшЯ", "αβΩ", "אבג", "ابت", "日本語", "中文字", "한국어", "ไทย", "€\u201a„†", "🦊🐢",
    "²¤¶", "ħ",
)  # fmt: skip
_CHARSETS = (
    "utf8mb4", "utf8", "latin1", "latin2", "latin5", "latin7", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852",
    "cp866", "greek", "hebrew", "koi8r", "koi8u", "macce", "macroman", "tis620", "sjis", "cp932", "ujis", "eucjpms",
    "euckr", "gbk", "gb2312", "big5", "ucs2", "utf16", "utf16le", "utf32", "ascii", "binary", "dec8", "hp8", "swe7",
    "armscii8", "geostd8", "keybcs2",
)  # fmt: skip
_GONE = (2006, 2013, 2055, 1927, 4031, 1053, 3135)


_CREATE = (
    "CREATE TABLE mark (id INT PRIMARY KEY, n BIGINT)",
    """CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(40), n BIGINT UNSIGNED, x DECIMAL(20,4), y DOUBLE, d DATETIME(6),
    ts TIMESTAMP(6) NULL, tm TIME(6))""",
    """CREATE TABLE b (k VARCHAR(20) CHARACTER SET latin1, n INT, bits BIT(9), yr YEAR, bin BINARY(4), vb VARBINARY(30),
    PRIMARY KEY (k, n))""",
    "CREATE TABLE c (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(40), u INT UNIQUE)",
    "CREATE TABLE m (id INT PRIMARY KEY, v VARCHAR(40)) ENGINE=MyISAM",
    "CREATE TABLE journal (n INT, v VARCHAR(40), at DATETIME(6))",
    "CREATE TABLE large (id INT PRIMARY KEY, v VARCHAR(3000))",
    "CREATE TABLE counted (id INT PRIMARY KEY, n INT)",
    """CREATE TRIGGER counts AFTER INSERT ON c FOR EACH ROW
    INSERT INTO counted VALUES (NEW.id % 10, 1) ON DUPLICATE KEY UPDATE n = n + 1""",
    """CREATE PROCEDURE work(IN key_ INT) BEGIN
    DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
    INSERT INTO c (id, v) VALUES (key_, 'called'), (key_ + 1, 'called');
    SAVEPOINT inner_; UPDATE a SET v = 'called' WHERE id = key_;
    ROLLBACK TO inner_; DELETE FROM c WHERE id = key_ + 1; END""",
)


class Session:
    """A connection that has some idea of the transaction it is in."""

    def __init__(self, workload: "Workload", number: int) -> None:
        self.workload, self.number, self.dice = workload, number, workload.dice
        self.in_transaction = False
        self.xid: str | None = None
        self.savepoints: list[str] = []
        self.connection = workload.connect()

    def do(self, sql: str) -> bool:
        """Whether the server took it; a session that it threw out is another one afterwards."""
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql)
        except pymysql.err.MySQLError as error:
            number = int(error.args[0])
            self.workload.refused[number] += 1
            if number in _GONE or not self.connection.open:
                self.renew()
            elif number == 1213:
                self._ended()
            return False
        except OSError:
            self.renew()
            return False
        self.workload.taken[sql.split(maxsplit=1)[0].upper()] += 1
        self.workload.statements.append(f"{self.number}: {sql[:200]}")
        return True

    def renew(self) -> None:
        """Another connection; the server rolls back what this one had begun."""
        self.connection.close()
        self._ended()
        self.xid = None
        self.connection = self.workload.connect()

    def _ended(self) -> None:
        self.in_transaction = False
        self.savepoints.clear()

    def finish(self) -> None:
        """End what is open, one way or the other."""
        if self.xid is not None:
            self._xa_end()
        elif self.in_transaction:
            self.do(self.dice.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
            self._ended()

    def turn(self) -> None:
        """One to a few statements."""
        dice = self.dice
        if self.xid is not None:
            self.write() if dice.random() < 0.5 else self._xa_end()
        elif self.in_transaction:
            self._inside()
        else:
            chosen = dice.random()
            if chosen < 0.45:
                self.in_transaction = self.do(dice.choice(["BEGIN", "START TRANSACTION", "BEGIN"]))
            elif chosen < 0.55:
                self._xa_start()
            elif chosen < 0.62:
                self._temporary()
            elif chosen < 0.70:
                self.workload.decide_xa(self)
            elif chosen < 0.72:
                self.do("FLUSH BINARY LOGS")
            else:
                self.write()

    def _inside(self) -> None:
        dice = self.dice
        chosen = dice.random()
        if chosen < 0.45:
            self.write()
        elif chosen < 0.60:
            self._savepoint()
        elif chosen < 0.72:
            self._temporary()
        elif chosen < 0.95:
            self.finish()
        elif chosen < 0.97:
            self.do("BEGIN")  # commits what is open
            self.savepoints.clear()
        else:
            self.renew()

    def _savepoint(self) -> None:
        dice = self.dice
        chosen = dice.random()
        if chosen < 0.5 or not self.savepoints:
            name = dice.choice(["s", "S", "t", "ü", "日本", "a b", "x`y", "rollback", "s1"])
            if self.do(f"SAVEPOINT {_quoted(name)}"):
                self.savepoints.append(name)
        elif chosen < 0.9:
            name = dice.choice(self.savepoints)
            self.do(
                f"{dice.choice(['ROLLBACK TO', 'ROLLBACK WORK TO SAVEPOINT', 'rollback to savepoint'])} {_quoted(name)}"
            )
        else:
            self.do(f"RELEASE SAVEPOINT {_quoted(dice.choice(self.savepoints))}")

    def _temporary(self) -> None:
        name = self.dice.choice(["x", "y"])
        self.do(
            self.dice.choice(
                [
                    f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} (id INT PRIMARY KEY, v VARCHAR(40)) ENGINE=InnoDB",
                    f"CREATE TEMPORARY TABLE {name} ENGINE=MyISAM AS SELECT id, v FROM a LIMIT 5",
                    f"DROP TEMPORARY TABLE IF EXISTS {name}",
                    f"INSERT IGNORE INTO {name} SELECT id, v FROM a LIMIT 3",
                    f"INSERT IGNORE INTO c (id, v) SELECT id + {self.key()}, v FROM {name}",
                    f"TRUNCATE TABLE {name}",
                ]
            )
        )

    def _xa_start(self) -> None:
        self.workload.xids += 1
        xid = self.dice.choice(["'x{0}'", "'x{0}','b'", "X'0A{0:04}','',7", "'it''s {0}','ü'"]).format(
            self.workload.xids
        )
        if self.workload.server.kind == "mysql-5.7":
            # Where a session with temporary tables ends, the engine commits what it has prepared, and the log does not
            # say so: an XA ROLLBACK that comes later undoes nothing, and an ALTER does not wait for it.
            self.do("DROP TEMPORARY TABLE IF EXISTS x, y")
        if self.do(f"XA START {xid}"):
            self.xid = xid

    def _xa_end(self) -> None:
        xid, dice, self.xid = self.xid, self.dice, None
        if not self.do(f"XA END {xid}"):
            self.do(f"XA ROLLBACK {xid}")
            return
        chosen = dice.random()
        if chosen < 0.25:
            self.do(f"XA COMMIT {xid} ONE PHASE") or self.do(f"XA ROLLBACK {xid}")
        elif chosen < 0.35:
            self.do(f"XA ROLLBACK {xid}")
        elif self.do(f"XA PREPARE {xid}"):
            chosen = dice.random()
            if chosen < 0.3:
                self.do(f"XA COMMIT {xid}")
            elif chosen < 0.5:
                self.do(f"XA ROLLBACK {xid}")
            else:
                self.renew()  # it stays prepared; somebody decides later
        else:
            self.do(f"XA ROLLBACK {xid}")

    # What is written.

    def key(self) -> int:
        """Mostly a key that no other session writes."""
        number = self.dice.randrange(KEYS_MAX)
        return number * SESSIONS + self.number if self.dice.random() < 0.9 else number

    def write(self) -> None:
        """One statement that changes rows, of any kind."""
        self.do(self.dice.choice(self.workload.writes)(self))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


class Workload:
    """The sessions, the tables and the dice. `statements`: what the server took, in order."""

    def __init__(self, server: Server, database: str, seed: int) -> None:
        self.server, self.database = server, database
        self.dice = random.Random(seed)
        self.taken: Counter[str] = Counter()
        self.refused: Counter[int] = Counter()
        self.statements: list[str] = []
        self.xids = 0
        self.writes: list[Callable[[Session], str]] = [
            self._put, self._put, self._put, self._change, self._change, self._remove, self._pair, self._many,
            self._words, self._words, self._journal, self._myisam, self._myisam, self._half, self._join,
            self._swap_keys, self._large, self._call,
        ]  # fmt: skip
        self._create()
        self.sessions = [Session(self, number) for number in range(SESSIONS)]

    def connect(self) -> "pymysql.Connection[Any]":
        """A session with habits of its own."""
        mode = self.dice.choice(["''", "'STRICT_TRANS_TABLES'", "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"])
        settings = (
            f"SET time_zone = '{self.dice.choice(['+00:00', '+05:30', '-08:00'])}', sql_mode = {mode}, "
            "innodb_lock_wait_timeout = 1, lock_wait_timeout = 1"
        )
        connection = self.server.connect(database=self.database, init_command=settings)
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection

    def _create(self) -> None:
        words = {}
        supported = {str(row[0]) for row in self.server.query("SHOW CHARACTER SET")}
        for number in range(4):
            charset = self.dice.choice([name for name in _CHARSETS if name in supported])
            members = ", ".join(_literal(member) for member in self._members(charset))
            kind = self.dice.choice(["VARCHAR(30)", "CHAR(12)", "TEXT", f"ENUM({members})", f"SET({members})"])
            words[f"w{number}"] = f"{kind} CHARACTER SET {charset}"
        self.words = words
        columns = ", ".join(f"{name} {kind} NULL" for name, kind in words.items())
        many = f"CREATE TABLE words (id INT PRIMARY KEY, {columns})"
        with self.server.connect(database=self.database, init_command="SET sql_mode = ''") as connection:
            for each in (*_CREATE, many):
                with connection.cursor() as cursor:
                    cursor.execute(each)

    def _members(self, charset: str) -> list[str]:
        """Four members, of which the server keeps the characters that the character set has."""
        server = self.server
        logs_members = server.row_metadata is not None and server.kind != "mysql-5.7"
        fitting = ["a", "B"]
        for alphabet in self.dice.sample(_ALPHABETS, len(_ALPHABETS)):
            text = self.dice.choice(alphabet.replace(" ", ""))
            if text > "\uffff" and server.flavor == "mysql" and not logs_members:
                continue  # where no row has such a member, it cannot be found, and capture stops, as documented
            asked = self.server.query(
                f"SELECT CONVERT(CONVERT(%s USING {charset}) USING utf8mb4) = BINARY %s", text, text
            )
            if asked[0][0] == 1 and text not in fitting:
                fitting.append(text)
            if len(fitting) == 4:
                break
        return fitting

    def text(self, length_max: int = 20) -> str:
        """Some characters of some alphabets, now and then none."""
        alphabet = "".join(self.dice.sample(_ALPHABETS, 2))
        return _literal("".join(self.dice.choice(alphabet) for _ in range(self.dice.randrange(length_max))))

    def _values(self) -> str:
        dice = self.dice
        number = dice.choice([0, 1, 2**63, 2**64 - 1, dice.randrange(10**9)])
        x = f"{dice.randrange(-(10**12), 10**12)}.{dice.randrange(10000):04}"
        day = f"20{dice.randrange(10, 37)}-0{dice.randrange(1, 10)}-1{dice.randrange(10)}"
        moment = f"'{day} 10:09:59.{dice.randrange(10**6):06}'"
        span = f"'{dice.choice(['', '-'])}{dice.randrange(800)}:10:11.{dice.randrange(10**6):06}'"
        some = [self.text(), number, x, dice.uniform(-1e20, 1e20), moment, moment, span]
        return ", ".join("NULL" if dice.random() < 0.1 else str(each) for each in some)

    def _put(self, session: Session) -> str:
        verb = self.dice.choice(["INSERT INTO", "REPLACE INTO", "INSERT IGNORE INTO"])
        return f"{verb} a (id, v, n, x, y, d, ts, tm) VALUES ({session.key()}, {self._values()})"

    def _change(self, session: Session) -> str:
        dice, key = self.dice, session.key()
        return dice.choice(
            [
                f"UPDATE a SET v = {self.text()}, n = n ^ 5 WHERE id = {key}",
                f"UPDATE c SET v = {self.text()} WHERE id BETWEEN {key} AND {key + 2}",
                f"UPDATE a SET id = id + 1000 WHERE id = {key}",
                f"UPDATE a SET d = NOW(6), ts = NOW(6) WHERE id % {SESSIONS * 3} = {session.number}",
                f"UPDATE a SET v = v WHERE id = {key}",
                f"INSERT INTO c (id, v, u) VALUES ({key}, 'n', {key % 7}) ON DUPLICATE KEY UPDATE v = {self.text()}",
            ]
        )

    def _remove(self, session: Session) -> str:
        table = self.dice.choice(["a", "c", "words", "m", "large"])
        return f"DELETE FROM {table} WHERE id IN ({session.key()}, {session.key()}, 1000 + {session.key()})"

    def _pair(self, session: Session) -> str:
        dice = self.dice
        name, bits, year = _literal(dice.choice("kéß")), dice.randrange(512), dice.choice([0, 1901, 1999, 2155])
        return (
            f"REPLACE INTO b (k, n, bits, yr, bin, vb) VALUES ({name}, {session.key()}, {bits}, {year}, "
            f"X'{dice.randbytes(4).hex()}', X'{dice.randbytes(dice.randrange(30)).hex()}')"
        )

    def _many(self, session: Session) -> str:
        start = 10_000 + session.key() * 10
        rows = ", ".join(f"({start + i}, {self.text()})" for i in range(self.dice.choice([2, 10, 60])))
        return f"INSERT IGNORE INTO c (id, v) VALUES {rows}"

    def _words(self, session: Session) -> str:
        name = self.dice.choice(list(self.words))
        kind = self.words[name]
        value = self.text(10)
        if kind.startswith(("ENUM", "SET")):
            value = str(self.dice.randrange(1, 5 if kind.startswith("ENUM") else 16))
        verb = self.dice.choice(["REPLACE INTO", "INSERT IGNORE INTO"])
        if self.dice.random() < 0.3:
            return f"UPDATE words SET {name} = {value} WHERE id % {SESSIONS} = {session.number} LIMIT 3"
        return f"{verb} words (id, {name}) VALUES ({session.key()}, {value})"

    def _journal(self, session: Session) -> str:
        self.xids += 1
        return f"INSERT INTO journal VALUES ({self.xids}, {self.text()}, NOW(6))"

    def _myisam(self, session: Session) -> str:
        key = session.key()
        return self.dice.choice(
            [
                f"REPLACE INTO m VALUES ({key}, {self.text()})",
                f"INSERT INTO m VALUES ({key}, 'one'), ({key + 1}, 'two'), ({key + 2}, 'three')",  # may fail half-way
                f"INSERT INTO m SELECT id, v FROM a WHERE id = {key} ON DUPLICATE KEY UPDATE m.v = a.v",
                f"UPDATE m SET v = {self.text()} WHERE id = {key}",
            ]
        )

    def _half(self, session: Session) -> str:
        key = session.key()
        return f"INSERT INTO a (id, v) VALUES ({key + 500}, 'half'), ({key}, 'way'), ({key}, 'fails')"

    def _join(self, session: Session) -> str:
        return self.dice.choice(
            [
                f"UPDATE a JOIN c ON a.id = c.id SET a.v = c.v, c.v = 'joined' WHERE a.id = {session.key()}",
                f"DELETE a, c FROM a JOIN c ON a.id = c.id WHERE a.id = {session.key()}",
                f"UPDATE a JOIN m ON a.id = m.id SET a.v = 'mixed', m.v = 'mixed' WHERE a.id = {session.key()}",
            ]
        )

    def _swap_keys(self, session: Session) -> str:
        key = session.key()
        return (
            f"UPDATE c SET id = IF(id = {key}, -1 - {key}, {key}) WHERE id IN ({key}, -1 - {key}) ORDER BY id LIMIT 1"
        )

    def _large(self, session: Session) -> str:
        start = session.key() * 100
        rows = ", ".join(f"({start + i}, REPEAT('{i}', {self.dice.randrange(1, 800)}))" for i in range(30))
        return self.dice.choice(["REPLACE INTO", "INSERT IGNORE INTO"]) + f" large VALUES {rows}"

    def _call(self, session: Session) -> str:
        return f"CALL work({session.key()})"

    # Now and then.

    def decide_xa(self, session: Session) -> None:
        """Somebody decides about what was left prepared."""
        for xid in self._prepared():
            if self.dice.random() < 0.7:
                session.do(f"XA {self.dice.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} {xid}")

    def _prepared(self) -> list[str]:
        found = []
        is_mysql = (
            self.server.flavor == "mysql"
        )  # it sends bytes that are no text as text, unless it is to convert them
        for kind, length, _, both in self.server.query(f"XA RECOVER{' CONVERT XID' if is_mysql else ''}"):
            raw = bytes.fromhex(both[2:]) if is_mysql else both if isinstance(both, bytes) else str(both).encode("utf8")
            found.append(f"X'{raw[: int(length)].hex()}', X'{raw[int(length) :].hex()}', {kind}")
        return found

    def alter(self) -> None:
        """A change of a table, when nobody is in the midst of something, mostly."""
        if self.dice.random() < 0.8:
            for each in self.sessions:
                each.finish()
        if self.server.kind == "mysql-5.7" and self._prepared():
            return  # it lets go of their locks when sessions end, and then capture stops, as docs/mysql.md says
        self.xids += 1
        n = self.xids
        default = self.dice.choice(
            ["INT DEFAULT 7", "VARCHAR(10) DEFAULT 'grün'", "DECIMAL(6,2) NOT NULL DEFAULT 1.50", "INT"]
        )
        statements = [
            f"ALTER TABLE a ADD COLUMN n{n} {default}", f"ALTER TABLE c ADD COLUMN n{n} {default} AFTER id",
            f"ALTER TABLE words ADD COLUMN n{n} INT", "ALTER TABLE m ENGINE=InnoDB", "ALTER TABLE m ENGINE=MyISAM",
            "TRUNCATE TABLE large", "TRUNCATE TABLE m", "CREATE TABLE copy LIKE a", "DROP TABLE IF EXISTS copy",
            "INSERT IGNORE INTO copy SELECT * FROM a", "RENAME TABLE copy TO other", "RENAME TABLE other TO copy",
            "CREATE TABLE made (PRIMARY KEY (id)) AS SELECT id, v, n FROM a", "DROP TABLE IF EXISTS made, other",
            "ALTER TABLE c MODIFY v VARCHAR(80)", "ALTER TABLE c ADD INDEX (v)", "ALTER TABLE a MODIFY v TEXT",
            "ALTER TABLE a MODIFY x DECIMAL(24,4)", "CREATE TABLE IF NOT EXISTS a (id INT PRIMARY KEY, wrong INT)",
            "RENAME TABLE a TO aside, c TO made_aside, made_aside TO c, aside TO a", "ANALYZE TABLE a",
            "OPTIMIZE TABLE c",
            "DROP TABLE no_such_table", "ALTER TABLE c DROP COLUMN u", "ALTER TABLE c ADD COLUMN u INT UNIQUE",
        ]  # fmt: skip
        self.dice.choice(self.sessions).do(self.dice.choice(statements))

    def kill_somebody(self) -> None:
        """KILL of a session in the midst of whatever it does, or its client dies."""
        victim = self.dice.choice(self.sessions)
        if self.server.kind == "mysql-5.7":
            victim.connection._force_close()  # of those killed, one in a hundred stays, with its locks: docs/mysql.md
            return
        with suppress(pymysql.err.OperationalError):  # it may be gone already
            self.server.query(f"KILL {victim.connection.thread_id()}")

    def settle(self) -> None:
        """End everything that is open, so that SELECT has an answer that stays."""
        for each in self.sessions:
            each.finish()
        for _ in range(3):
            for xid in self._prepared():
                self.sessions[0].do(f"XA {self.dice.choice(['COMMIT', 'ROLLBACK'])} {xid}")

    def close(self) -> None:
        """Let go of the server."""
        for each in self.sessions:
            each.connection.close()
