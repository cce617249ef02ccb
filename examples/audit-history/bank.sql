CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, balance_cents INTEGER NOT NULL);
INSERT INTO accounts VALUES (1, 'Ada', 10000), (2, 'Bo', 0);
