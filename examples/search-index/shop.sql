CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, about TEXT, price_cents INTEGER NOT NULL, cost_cents INTEGER);
INSERT INTO products VALUES
  (1, 'blanket', 'a warm blanket of wool', 4900, 2100),
  (2, 'socks', 'socks of wool and cotton', 900, 200),
  (3, 'kettle', 'boils a litre of water', 3900, 1700);
