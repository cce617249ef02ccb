CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price_cents INTEGER NOT NULL);
INSERT INTO products VALUES (1, 'kettle', 3900), (2, 'teapot', 2500), (3, 'cup', 450);
