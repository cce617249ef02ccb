"""What an account held right after a commit, or holds now: the last image of its row up to then."""

import sys

from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

account, version = (int(each) for each in (*sys.argv[1:], 2**62)[:2])
files = SubTreeFileSystem("audit/accounts", LocalFileSystem())  # PyArrow's own: see docs/reading.md
rows = DeltaTable("audit/accounts").to_pandas(filesystem=files)
rows = rows[(rows["id"] == account) & (rows["_commit_version"] <= version)]
rows = rows[rows["_change_type"] != "update_preimage"].sort_values(["_commit_version", "_seq"])
last = rows.iloc[-1]
print("closed" if last["_change_type"] == "delete" else last["balance_cents"])
