"""A target that refuses some changes, and what an output keeps of these."""

import json

from databus.testing._change_log import ORDERS, ChangeLog
from tests.http.receiver import Receiver
from tests.http.support import opened
from tests.outputs.harnesses import order


class Choosy(Receiver):
    """Refuses a request in which a change has one of the notes `refused`. taken: changes that it took; of what came
    twice the first.
    """

    def __init__(self, *refused, status=422):
        self.refused, self.status = set(refused or ["bad"]), status
        self.denied_at = None  # the number of a request that is answered 401
        self._taken = {}
        super().__init__(self._judge)

    def _judge(self, request):
        if len(self.seen) == self.denied_at:
            return 401
        if self.refused & notes_in(request):
            return self.status, {}, "no such note"
        for change in request.changes:
            self._taken.setdefault(json.dumps(change), change)
        return None

    @property
    def taken(self):
        return list(self._taken.values())


def notes_in(request):
    return {
        (row or {}).get("note")
        for change in request.changes
        for row in (change, change.get("after"), change.get("data"))
    }


def pair_of(row):
    return row["_commit_version"], row["_seq"]


def keeping(receiver, folder, **options):
    return opened(receiver, folder, on_error="dead_letter", **options)


def all_of(log):
    return log.batch(0, len(log.entries))


def letters_of(output):
    return [each for file in output.letters.files() for each in output.letters.read(file).letters]


def replay(output):
    for file in output.letters.files():
        output.letters.keep(file, output.replay(output.letters.read(file)))


def log_of(*notes):
    log = ChangeLog()
    for number, note in enumerate(notes, 1):
        log.begin().insert(ORDERS, order(number, note))
    return log
