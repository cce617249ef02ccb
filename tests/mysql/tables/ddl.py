# ruff: noqa: E501, PLR0911, PLR0912 - a branch for each form of statement
"""Random DDL: statements that mostly run, over every type, key, place and option. A server that refuses one logs nothing."""

import random

_COMMON = """TINYINT;TINYINT(1);TINYINT(3) UNSIGNED;SMALLINT;SMALLINT(3) ZEROFILL;MEDIUMINT UNSIGNED;INT;INT(5);INTEGER UNSIGNED
BIGINT;BIGINT(20) UNSIGNED;INT ZEROFILL;BOOL;BOOLEAN;INT1;INT8 UNSIGNED;MIDDLEINT;DECIMAL;DECIMAL(5);DECIMAL(12,2);NUMERIC(65,30)
DEC(10,3) UNSIGNED;FIXED(6,1) ZEROFILL;FLOAT;FLOAT(10);FLOAT(30);FLOAT(7,3);FLOAT UNSIGNED;DOUBLE;DOUBLE PRECISION;DOUBLE(10,2)
REAL;REAL(5,2);BIT;BIT(7);BIT(8);BIT(17);BIT(64);YEAR;YEAR(4);DATE;TIME;TIME(2);DATETIME;DATETIME(6);TIMESTAMP;TIMESTAMP(3)
TIMESTAMP NULL;CHAR;CHAR(0);CHAR(30);CHAR(255);CHARACTER(4);VARCHAR(0);VARCHAR(10);VARCHAR(63);VARCHAR(64);VARCHAR(300)
CHAR VARYING(9);CHARACTER VARYING(12);NCHAR(5);NATIONAL VARCHAR(7);NVARCHAR(3);NATIONAL CHARACTER VARYING(5);BINARY;BINARY(16)
VARBINARY(10);VARBINARY(300);CHAR(4) BYTE;TINYTEXT;TEXT;MEDIUMTEXT;LONGTEXT;TINYBLOB;BLOB;MEDIUMBLOB;LONGBLOB;TEXT(20);TEXT(70)
TEXT(300);TEXT(20000);TEXT(5000000);BLOB(20);BLOB(300);BLOB(70000);LONG;LONG VARBINARY;LONG VARCHAR;JSON;GEOMETRY;POINT
LINESTRING;POLYGON;MULTIPOINT;MULTILINESTRING;MULTIPOLYGON;GEOMETRYCOLLECTION;CHAR(5) ASCII;VARCHAR(5) UNICODE;CHAR(5) BINARY
ENUM('a','b','c');ENUM('x''y','back\\\\slash','d"q','tail ');SET('r','g','b');SET('1','2','3','4','5','6','7','8','9')
ENUM('é','ü') CHARACTER SET utf8mb4;SET('a') CHARACTER SET latin1;ENUM('one','two') CHARACTER SET binary;VARCHAR(20) CHARACTER SET latin1
VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;TEXT CHARACTER SET utf16;CHAR(10) CHARSET ucs2;VARCHAR(20) COLLATE latin1_bin
VARCHAR(12) CHARACTER SET binary;TEXT CHARACTER SET binary;CHAR(3) COLLATE binary;VARCHAR(9) CHARACTER SET gbk;CHAR(9) CHARACTER SET sjis
TEXT CHARACTER SET utf8;VARCHAR(20) CHARACTER SET utf8mb4;LONGTEXT CHARACTER SET ascii"""
_MARIADB = "UUID;INET4;INET6;VARCHAR(50) COMPRESSED;TEXT COMPRESSED;VARBINARY(90) COMPRESSED;BLOB COMPRESSED"
_CHARSETS = ("latin1", "utf8mb4", "utf8", "utf8mb3", "ascii", "gbk", "cp1251", "utf8mb4", "binary")
_COLLATIONS = ("latin1_bin", "utf8mb4_unicode_ci", "utf8_general_ci", "utf8mb4_bin", "binary")
_COMMENTS = (
    "",
    "",
    "",
    " COMMENT 'a, b) -- c'",
    " COMMENT 'it''s /* x */ \\\\'",
    " /*!40101 COMMENT 'x' */",
    " /*!99999 FOO */",
)


class Generator:
    """Statements on tables of the default database. names: of the tables that may be there."""

    def __init__(self, seed: int, *, is_mariadb: bool, version: tuple[int, ...]) -> None:
        self.random = random.Random(seed)
        self._is_mariadb = is_mariadb
        self._is_8 = not is_mariadb and version >= (8,)
        lines = [_COMMON, _MARIADB] if is_mariadb else [_COMMON]
        self._types = [each for line in lines for row in line.split("\n") for each in row.split(";")]
        if not is_mariadb and version < (8,):  # which damages such members when it converts them
            self._types = [kind for kind in self._types if kind.isascii()]
        self.names = ["t1", "t2", "T3", "t-4", "tä5"]
        self.columns: dict[str, list[str]] = {}
        self.integers: dict[str, list[str]] = {}  # columns whose default may be a number
        self._count = 0

    def _one_in(self, n: int) -> bool:
        return self.random.randrange(n) == 0

    def quoted(self, name: str) -> str:
        return f"`{name}`" if not name.isascii() or not name.isalnum() or self._one_in(2) else name

    def table(self) -> str:
        return self.random.choice(self.names)

    def new_name(self) -> str:
        self._count += 1
        form = self.random.choice(["c{}", "C{}", "ç{}", "c {}", "{}c", "key{}", "c_{}"])
        return form.format(self._count)

    def column(self, table: str) -> str:
        found = self.columns.get(table) or ["nothing"]
        name = self.random.choice(found)
        return name.upper() if self._one_in(5) else name

    def default(self, kind: str) -> str:
        upper = kind.upper()
        if self._one_in(6):
            return "NULL"
        if upper.startswith(("TINYINT", "SMALL", "MEDIUM", "INT", "BIG", "BOOL", "MIDDLE")) and "TEXT" not in upper:
            return self.random.choice(["0", "1", "7", "'5'", "TRUE", "+3", "1.4"])
        if upper.startswith(("DEC", "NUM", "FIXED")):
            return self.random.choice(["0", "1.5", "'2.25'", "1e1", "3"])
        if upper.startswith(("FLOAT", "DOUBLE", "REAL")):
            return self.random.choice(["0", "1.5", "0.1", "1e10", "'2'"])
        if upper.startswith("BIT"):
            return self.random.choice(["b'1'", "1", "0"])
        if upper.startswith("YEAR"):
            return self.random.choice(["2020", "'1999'", "0"])
        if upper.startswith("DATETIME"):
            return self.random.choice(["'2020-01-02 03:04:05'", "CURRENT_TIMESTAMP", "'2021-02-03'", "NOW()"])
        if upper.startswith("DATE"):
            return self.random.choice(["'2020-01-02'", "'1999-12-31'"])
        if upper.startswith("TIMESTAMP"):
            return self.random.choice(["CURRENT_TIMESTAMP", "'2020-01-02 03:04:05'", "0"])
        if upper.startswith("TIME"):
            return self.random.choice(["'10:11:12'", "'-01:02:03'", "0"])
        if upper.startswith("ENUM"):
            return self.random.choice(["'a'", "'b'", "'one'", "'é'"])
        if upper.startswith("SET"):
            return self.random.choice(["'r,g'", "''", "'3,1'", "'a'"])
        if "BINARY" in upper or "BLOB" in upper:
            return self.random.choice(["'ab'", "''", "x'6162'"])
        return self.random.choice(["'abc'", "''", "'it''s'", "5", "'ü'", "'a  '"])

    def attributes(self, kind: str) -> str:
        text = self.random.choice(["", "", " NULL", " NOT NULL", " NOT NULL"]) if " NULL" not in kind else ""
        if self._one_in(3):
            text += f" DEFAULT {self.default(kind)}"
        elif self._one_in(12) and self._is_mariadb:
            text += " DEFAULT (1 + 1)"
        if "TIMESTAMP" in kind and self._one_in(3):
            text += " ON UPDATE CURRENT_TIMESTAMP" + (kind[9:12] if "(" in kind else "")
        if self._one_in(9):
            text += " UNIQUE"
        if self._one_in(8) and (self._is_8 or self._is_mariadb):
            text += " INVISIBLE"
        return text + self.random.choice(_COMMENTS)

    def define(self, table: str) -> str:
        if self._one_in(12) and self.columns.get(table):
            kind = self.random.choice(["VIRTUAL", "STORED", ""])
            return f"INT GENERATED ALWAYS AS (1 + 2) {kind}"
        kind = self.random.choice(self._types)
        return kind + self.attributes(kind)

    def key(self, columns: list[str]) -> str:
        chosen = self.random.sample(columns, min(len(columns), self.random.choice([1, 1, 2, 3])))
        parts = ", ".join(
            self.quoted(name) + self.random.choice(["", "", "(3)"]) + self.random.choice(["", "", " DESC"])
            for name in chosen
        )
        kind = self.random.choice(
            ["PRIMARY KEY", "UNIQUE", "UNIQUE KEY", "INDEX", "KEY", "CONSTRAINT `u` UNIQUE INDEX"]
        )
        self._count += 1
        name = f" k{self._count}" if self._one_in(2) and "PRIMARY" not in kind and "CONSTRAINT" not in kind else ""
        return f"{kind}{name} {self.random.choice(['', '', 'USING BTREE '])}({parts})"

    def options(self) -> str:
        text = ""
        if self._one_in(2):
            text += self.random.choice([" CHARSET {}", " DEFAULT CHARACTER SET = {}", " CHARACTER SET={}"]).format(
                self.random.choice(_CHARSETS)
            )
        elif self._one_in(4):
            text += f" COLLATE={self.random.choice(_COLLATIONS)}"
        if self._one_in(3):
            text += " ENGINE=InnoDB AUTO_INCREMENT=7, ROW_FORMAT DYNAMIC COMMENT='CHARSET=latin1'"
        return text

    def create(self) -> str:
        name = self.table()
        if self._one_in(6):
            other = self.table()
            return f"CREATE TABLE {self.quoted(name)} {self.random.choice(['LIKE {}', '(LIKE {})']).format(self.quoted(other))}"
        columns = [self.new_name() for _ in range(self.random.randint(1, 9))]
        self.columns[name] = []
        parts = [f"{self.quoted(column)} {self.define(name)}" for column in columns]
        if self._one_in(2):
            parts.insert(
                0,
                f"id {self.random.choice(['INT AUTO_INCREMENT PRIMARY KEY', 'SERIAL', 'BIGINT NOT NULL PRIMARY KEY'])}",
            )
        parts += [self.key(columns) for _ in range(self.random.choice([0, 0, 1, 2]))]
        start = "CREATE TABLE" + self.random.choice(["", "", " IF NOT EXISTS"])
        if self._is_mariadb and self._one_in(4):
            start = "CREATE OR REPLACE TABLE"
        partitions = " PARTITION BY HASH(1) PARTITIONS 2" if self._one_in(30) else ""
        return f"{start} {self.quoted(name)} (\n  {', '.join(parts)}\n){self.options()}{partitions}"

    def place(self, table: str) -> str:
        return self.random.choice(["", "", " FIRST", f" AFTER {self.quoted(self.column(table))}"])

    def action(self, table: str) -> str:
        pick = self.random.randrange(22)
        column = self.quoted(self.column(table))
        if pick < 6:
            return f"ADD {self.random.choice(['', 'COLUMN '])}{self.quoted(self.new_name())} {self.define(table)}{self.place(table)}"
        if pick < 9:
            return f"MODIFY {self.random.choice(['', 'COLUMN '])}{column} {self.define(table)}{self.place(table)}"
        if pick < 11:
            return f"CHANGE {column} {self.quoted(self.new_name())} {self.define(table)}{self.place(table)}"
        if pick < 13:
            return f"DROP {self.random.choice(['', 'COLUMN '])}{column}"
        if pick == 13:
            return f"ADD ({self.quoted(self.new_name())} {self.define(table)}, {self.quoted(self.new_name())} INT)"
        if pick == 14:
            return self.random.choice(
                ["DROP PRIMARY KEY", f"DROP KEY k{self.random.randint(1, self._count + 1)}", "DROP INDEX u"]
            )
        if pick == 15:
            return f"ADD {self.key(self.columns.get(table) or ['id'])}"
        if pick == 16:
            return f"CONVERT TO CHARACTER SET {self.random.choice(['latin1', 'utf8mb4', 'utf8', 'utf8mb4'])}"
        if pick == 17:
            return f"DEFAULT CHARSET={self.random.choice(_CHARSETS)}"
        if pick == 18 and self.integers.get(table):
            name = self.quoted(self.random.choice(self.integers[table]))
            return f"ALTER COLUMN {name} {self.random.choice(['DROP DEFAULT', 'SET DEFAULT 1'])}"
        if pick == 19 and (self._is_8 or self._is_mariadb):
            return f"RENAME COLUMN {column} TO {self.quoted(self.new_name())}"
        if pick == 20 and self._is_8:
            return f"ALTER COLUMN {column} SET {self.random.choice(['VISIBLE', 'INVISIBLE'])}"
        return self.random.choice(["ALGORITHM=DEFAULT", "FORCE", "COMMENT 'x'", "ENGINE=InnoDB", "AUTO_INCREMENT = 9"])

    def statement(self) -> str:
        pick = self.random.randrange(20)
        table = self.table()
        if pick < 5:
            return self.create()
        if pick < 15:
            actions = [self.action(table) for _ in range(self.random.choice([1, 1, 1, 2, 3]))]
            if any(action.startswith("CONVERT") for action in actions):
                actions = actions[:1]  # MySQL 8.0 cuts a TEXT that the same statement defines
            return f"ALTER TABLE {self.quoted(table)} {', '.join(actions)}"
        if pick == 15:
            other = self.table()
            return self.random.choice(
                [
                    f"RENAME TABLE {self.quoted(table)} TO {self.quoted(other)}",
                    f"RENAME TABLE {self.quoted(table)} TO swap_, {self.quoted(other)} TO {self.quoted(table)}, swap_ TO {self.quoted(other)}",
                    f"ALTER TABLE {self.quoted(table)} RENAME AS {self.quoted(other)}",
                ]
            )
        if pick == 16:
            return f"DROP TABLE IF EXISTS {self.quoted(table)}, nothing"
        if pick == 17:
            unique = self.random.choice(["", "UNIQUE "])
            return f"CREATE {unique}INDEX k{self._count} ON {self.quoted(table)} ({self.quoted(self.column(table))})"
        if pick == 18:
            return self.random.choice(
                [f"TRUNCATE {self.quoted(table)}", "FLUSH TABLES", f"ANALYZE TABLE {self.quoted(table)}"]
            )
        return f"CREATE TABLE {self.quoted(table)} AS SELECT 1 AS one, 'x' AS two, NOW(3) AS three, 1.5 AS four"
