"""Search the products, and show what is found, by name and price: `python search.py wool`."""

import json
import sys
import urllib.parse
import urllib.request
from pathlib import Path


def main(words):
    address = Path("search.address").read_text()
    asked = urllib.parse.urlencode({"q": f"about:({words})", "sort": "price_cents"})
    with urllib.request.urlopen(f"{address}/shop-products/_search?{asked}") as answer:
        for hit in json.load(answer)["hits"]["hits"]:
            print(f"{hit['_source']['name']} {hit['_source']['price_cents']}")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
