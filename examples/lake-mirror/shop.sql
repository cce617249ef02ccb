CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT, phone TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, total_cents INTEGER NOT NULL);
INSERT INTO customers VALUES (1, 'Ada', 'ada@example.com', '020 1'), (2, 'Bo', 'bo@example.com', NULL);
INSERT INTO orders VALUES (1, 1, 995), (2, 1, 12000), (3, 2, 500);
