CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, total_cents INTEGER NOT NULL);
CREATE TABLE audit (id INTEGER PRIMARY KEY, what TEXT);
INSERT INTO customers VALUES (1, 'Ada', 'ada@example.com'), (2, 'Bo', 'bo@example.com');
INSERT INTO orders VALUES (1, 1, 995), (2, 1, 12000), (3, 2, 500);
INSERT INTO audit VALUES (1, 'made');
