"""The dispatcher against a model, over thousands of random histories; a failing one prints its seed."""

import random
from dataclasses import dataclass, field

import pytest

from databus.client import Call, CallKind, ConsumerFailed, Dispatcher, Result
from databus.core import SEQ_DONE, Checkpoint, LockHeld, SourceCheckpoint
from databus.schema import Column, TableSchema

TABLE = TableSchema("main.t", (Column("id", "int64"),), ("id",))
OTHER = TableSchema("main.u", (Column("id", "int64"),), ("id",))


@dataclass(frozen=True)
class FakeChanges:
    source: str
    table: TableSchema


@dataclass(frozen=True)
class FakeWindow:
    """What the dispatcher looks at of a window. number: its place in its source's history."""

    physical: str
    number: int
    scn: int
    seq: int | None = None
    tables: tuple[TableSchema, ...] = (TABLE,)
    has_control: bool = False
    control: str = "control"
    look_back: str | None = None
    is_consistent: bool = True

    @property
    def continues(self):
        return self.seq is not None

    @property
    def is_empty(self):
        return not self.tables and not self.has_control

    @property
    def position(self):
        return SourceCheckpoint(uuid=self.physical, scn=self.scn, seq=self.seq)

    def changes(self):
        return [FakeChanges(f"{self.physical}/{table.source}", table) for table in self.tables]


def history(rng: random.Random, physical: str) -> list[FakeWindow]:
    windows = []
    for scn in range(1, rng.randint(2, 12)):
        parts = rng.choice([1, 1, 1, 1, 3])
        for part in range(parts):
            is_last = part == parts - 1
            tables = rng.choice([(TABLE,), (TABLE, OTHER), () if is_last else (TABLE,)])
            control = part == 0 and rng.random() < 0.1
            windows.append(FakeWindow(physical, len(windows), scn, None if is_last else part + 1, tables, control))
    return windows


@dataclass
class Model:
    """A consumer that keeps effects, and the shell around it. It checks each call against what has been promised."""

    rng: random.Random
    histories: dict[str, list[FakeWindow]]
    faults: float
    retries_max: int = 3
    store: Checkpoint = field(default_factory=Checkpoint)
    effects: dict[str, list[int]] = field(default_factory=dict)  # numbers of windows whose rows were taken
    cursor: dict[str, int] = field(default_factory=dict)  # what the shell reads next
    left: set[str] = field(default_factory=set)
    told: list[tuple[str, BaseException]] = field(default_factory=list)
    is_in: dict[str, str] = field(default_factory=dict)  # "" outside a window, "window", "source"
    seen: list[Call] = field(default_factory=list)
    is_started: bool = False
    is_stopped: bool = False

    def __post_init__(self):
        for physical in self.histories:
            self.effects[physical] = []
        self.restart()

    def restart(self):
        """As after a crash: only what was saved is known, and the effects up to there."""
        self.dispatcher = Dispatcher(self.store, retries_max=self.retries_max)
        self.is_started, self.is_stopped, self.left = False, False, set()
        for physical in self.histories:
            self.is_in[physical] = ""
            self.rewind(physical, self.saved(physical))
        self.dispatcher.start()
        self.perform()
        for physical in self.histories:
            self.dispatcher.started(physical, self.saved(physical))
            self.perform()

    def saved(self, physical):
        return self.store.sources.get(physical, SourceCheckpoint(uuid=physical))

    def done_at(self, physical, position):
        return [w.number for w in self.histories[physical] if w.position.pair <= position.pair]

    def rewind(self, physical, position):
        keep = self.done_at(physical, position)
        self.cursor[physical] = len(keep)
        self.effects[physical] = [number for number in self.effects[physical] if number in set(keep)]

    def outcome(self, call):
        if self.rng.random() >= self.faults:
            return self.rng.choice([Result.SUCCESS] * 8 + [Result.CHECKPOINT, Result.SKIP_CHECKPOINT])
        if call.kind in (CallKind.ERROR, CallKind.ROLLBACK, CallKind.START_CONSUMPTION, CallKind.STOP_CONSUMPTION):
            return Result.SUCCESS if self.rng.random() < 0.7 else Result.ERROR_FATAL
        return self.rng.choice([Result.ERROR, OSError("broken"), Result.ERROR, Result.ERROR_FATAL])

    def perform(self):
        while (call := self.dispatcher.next()) is not None:
            self.seen.append(call)
            self.check(call)
            outcome = self.outcome(call)
            if call.kind in (CallKind.REPLAY, CallKind.LEAVE):
                outcome = Result.SUCCESS
            if call.kind is CallKind.SAVE and isinstance(outcome, Result):
                outcome = Result.SUCCESS
            if isinstance(outcome, Exception):
                self.dispatcher.failed(call, outcome)
                continue
            self.take_effect(call, outcome)
            self.dispatcher.done(call, outcome)

    def check(self, call):
        assert not self.is_stopped, "a call after on_stop_consumption"
        if call.kind is CallKind.START_CONSUMPTION:
            assert not self.is_started
            self.is_started = True
            return
        assert self.is_started, "a call before on_start_consumption"
        if call.kind is CallKind.STOP_CONSUMPTION:
            self.is_stopped = True
            return
        now = self.is_in[call.physical]
        nested = [other for other, state in self.is_in.items() if state and other != call.physical]
        if call.kind is CallKind.START_WINDOW:
            assert now == ""
            assert not nested, "windows of two physical sources are nested"
            self.is_in[call.physical] = "window"
        elif call.kind is CallKind.CONTROL:
            assert now == "window"
        elif call.kind is CallKind.START_SOURCE:
            assert now == "window"
            self.is_in[call.physical] = "source"
        elif call.kind is CallKind.DATA_EVENTS:
            assert now == "source"
        elif call.kind is CallKind.END_SOURCE:
            assert now == "source"
            self.is_in[call.physical] = "window"
        elif call.kind is CallKind.END_WINDOW:
            assert now == "window"
            self.is_in[call.physical] = ""
        elif call.kind is CallKind.CHECKPOINT:
            assert now == "" or call.window.continues
        elif call.kind is CallKind.ROLLBACK:
            assert call.argument == self.saved(call.physical), "rolled back to something else than the last checkpoint"
            self.is_in[call.physical] = ""
        elif call.kind is CallKind.REPLAY:
            assert call.argument == self.saved(call.physical)
            assert now == ""

    def take_effect(self, call, outcome):
        if call.kind in (CallKind.DATA_EVENTS, CallKind.CONTROL):
            taken = self.effects[call.physical]
            if not taken or taken[-1] != call.window.number:  # a window's second source
                assert not taken or taken[-1] < call.window.number, "out of order, or twice"
                taken.append(call.window.number)
        elif call.kind is CallKind.SAVE:
            self.check_saved(call)
            self.store = call.argument
        elif call.kind in (CallKind.ROLLBACK, CallKind.REPLAY):
            self.rewind(call.physical, call.argument)
        elif call.kind is CallKind.LEAVE:
            self.left.add(call.physical)
        elif call.kind is CallKind.ERROR:
            self.told.append((call.physical, call.argument))

    def check_saved(self, call):
        """Nothing is saved of which a row has not been taken."""
        position = call.argument.sources[call.physical]
        wanted = [
            w.number for w in self.histories[call.physical] if w.position.pair <= position.pair and not w.is_empty
        ]
        assert self.effects[call.physical][: len(wanted)] == wanted
        for other in self.histories:
            if other != call.physical and other in self.store.sources:
                assert call.argument.sources[other] == self.store.sources[other]

    def step(self):
        """One thing that the world does."""
        ready = [name for name in self.histories if name not in self.left]
        inside = [name for name in ready if self.dispatcher.is_open(name)]
        physical = self.rng.choice(inside or ready)
        windows, at = self.histories[physical], self.cursor[physical]
        chance = self.rng.random()
        if chance < self.faults / 2 and self.dispatcher.is_open(physical):
            self.dispatcher.interrupted(physical)
        elif chance < 0.1 or at >= len(windows):
            self.dispatcher.due(physical)
        else:
            self.cursor[physical] += 1
            self.dispatcher.feed(windows[at], is_due=self.rng.random() < 0.4)
        self.perform()

    @property
    def is_finished(self):
        return all(name in self.left or self.cursor[name] >= len(windows) for name, windows in self.histories.items())


def run(seed: int) -> Model:
    rng = random.Random(seed)
    histories = {name: history(rng, name) for name in ["a", "b"][: rng.randint(1, 2)]}
    model = Model(rng, histories, faults=rng.choice([0.0, 0.02, 0.1]))
    for _ in range(2_000):
        if model.dispatcher.is_stopping:
            model.dispatcher.stop()
            model.perform()
            model.restart()
        elif rng.random() < 0.01:
            model.restart()  # a crash: nothing was told to anybody
        elif rng.random() < 0.01:
            model.dispatcher.stop()
            model.perform()
            assert model.is_stopped or not model.is_started or model.dispatcher.error is not None
            model.restart()
        elif model.is_finished:
            break
        else:
            model.step()
    return model


@pytest.mark.parametrize("block", range(10))
def test_random_histories_keep_order_lose_nothing_and_replay_exactly_from_the_last_checkpoint(block):
    finished = 0
    for seed in range(block * 300, block * 300 + 300):
        try:
            model = run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for name, windows in model.histories.items():
            if name not in model.left and model.is_finished:
                finished += 1
                wanted = [w.number for w in windows if not w.is_empty]
                assert model.effects[name] == wanted, f"seed {seed}: {name} took {model.effects[name]}, not {wanted}"
    assert finished > 200, "too few histories came to their end to say anything"


def quiet(*windows, **options) -> tuple[Model, Dispatcher]:
    histories = {}
    for window in windows:
        histories.setdefault(window.physical, []).append(window)
    model = Model(random.Random(0), histories, faults=0.0, **options)
    model.outcome = lambda _call: Result.SUCCESS
    model.seen.clear()
    return model, model.dispatcher


def kinds(model) -> str:
    return " ".join(call.kind.name.lower() for call in model.seen)


def test_callbacks_of_a_window_come_in_the_documented_order():
    window = FakeWindow("a", 0, 1, tables=(TABLE, OTHER), has_control=True)
    model, dispatcher = quiet(window)
    dispatcher.feed(window, is_due=True)
    model.perform()
    assert kinds(model) == (
        "start_window control start_source data_events end_source start_source data_events end_source "
        "end_window checkpoint save"
    )


def test_a_large_transaction_is_one_window_whose_rows_come_in_parts():
    parts = [FakeWindow("a", 0, 1, 5), FakeWindow("a", 1, 1, 9), FakeWindow("a", 2, 1, tables=())]
    model, dispatcher = quiet(*parts)
    for part in parts:
        dispatcher.feed(part, is_due=True)
        model.perform()
    rows = "start_source data_events end_source"
    assert kinds(model) == f"start_window {rows} {rows} end_window checkpoint save"
    assert model.store.sources["a"].pair == (1, SEQ_DONE)


def test_a_part_is_checkpointed_when_its_consumer_asks_and_a_failure_goes_back_there():
    parts = [FakeWindow("a", 0, 1, 5), FakeWindow("a", 1, 1)]
    model, dispatcher = quiet(*parts)
    model.outcome = lambda call: Result.CHECKPOINT if call.kind is CallKind.DATA_EVENTS else Result.SUCCESS
    dispatcher.feed(parts[0], is_due=False)
    model.perform()
    assert model.store.sources["a"].seq == 5
    model.outcome = lambda call: Result.ERROR if call.kind is CallKind.END_WINDOW else Result.SUCCESS
    dispatcher.feed(parts[1], is_due=False)
    model.perform()
    assert [call.argument.seq for call in model.seen if call.kind is CallKind.REPLAY] == [5]


def test_a_window_that_is_skipped_is_covered_by_a_later_checkpoint():
    windows = [FakeWindow("a", 0, 1), FakeWindow("a", 1, 2)]
    model, dispatcher = quiet(*windows)
    model.outcome = lambda call: Result.SKIP_CHECKPOINT if call.kind is CallKind.END_SOURCE else Result.SUCCESS
    dispatcher.feed(windows[0], is_due=True)
    model.perform()
    assert "a" not in model.store.sources or model.store.sources["a"].scn == 0
    model.outcome = lambda _call: Result.SUCCESS
    dispatcher.feed(windows[1], is_due=True)
    model.perform()
    assert model.store.sources["a"].scn == 2


def test_retries_are_bounded_and_then_the_error_is_told():
    window = FakeWindow("a", 0, 1)
    model, dispatcher = quiet(window, retries_max=2)
    model.outcome = lambda call: ValueError("no") if call.kind is CallKind.DATA_EVENTS else Result.SUCCESS
    for _ in range(3):
        dispatcher.feed(window, is_due=True)
        model.perform()
    assert [call.attempt for call in model.seen if call.kind is CallKind.REPLAY] == [1, 2]
    assert model.seen[-2:] == [call for call in model.seen if call.kind in (CallKind.LEAVE, CallKind.ERROR)]
    (physical, error) = model.told[0]
    assert physical == "a"
    assert isinstance(error, ConsumerFailed)
    assert "retries_max=2" in str(error)
    assert "SCN 1" in str(error)


def test_a_checkpoint_that_keeps_failing_is_no_endless_loop():
    window = FakeWindow("a", 0, 1)
    model, dispatcher = quiet(window, retries_max=2)
    model.outcome = lambda call: ValueError("full") if call.kind is CallKind.CHECKPOINT else Result.SUCCESS
    for _ in range(3):
        dispatcher.feed(window, is_due=True)
        model.perform()
    assert [call.attempt for call in model.seen if call.kind is CallKind.REPLAY] == [1, 2]
    assert "on_checkpoint failed 3 times, retries_max=2" in str(model.told[0][1])


def test_failures_at_other_places_do_not_add_up():
    windows = [FakeWindow("a", number, number + 1) for number in range(20)]
    model, dispatcher = quiet(*windows, retries_max=1)
    failed = set()

    def once_each(call):
        if call.kind is CallKind.END_WINDOW and call.window.number not in failed:
            failed.add(call.window.number)
            return Result.ERROR
        return Result.SUCCESS

    model.outcome = once_each
    while not model.is_finished:
        dispatcher.feed(windows[model.cursor["a"]], is_due=False)
        model.cursor["a"] += 1
        model.perform()
    assert model.effects["a"] == list(range(20))
    assert not model.told


def test_one_source_given_up_leaves_the_others_going():
    windows = [FakeWindow("a", 0, 1), FakeWindow("b", 0, 1)]
    model, dispatcher = quiet(*windows)
    dispatcher.lost("a", ConsumerFailed("purged"))
    model.perform()
    assert not dispatcher.is_stopping
    dispatcher.feed(windows[0], is_due=True)
    dispatcher.feed(windows[1], is_due=True)
    model.perform()
    assert model.effects == {"a": [], "b": [0]}


def test_an_idle_commit_moves_the_checkpoint_without_any_window():
    window = FakeWindow("a", 0, 7, tables=())
    model, dispatcher = quiet(window)
    dispatcher.feed(window, is_due=True)
    model.perform()
    assert kinds(model) == "checkpoint save"
    assert model.store.sources["a"].scn == 7


def test_stopping_saves_what_is_done_and_takes_back_what_is_not():
    windows = [FakeWindow("a", 0, 1), FakeWindow("b", 0, 1, 5), FakeWindow("b", 1, 1)]
    model, dispatcher = quiet(*windows)
    for window in windows[:2]:
        dispatcher.feed(window, is_due=False)
        model.perform()
    model.seen.clear()
    dispatcher.stop()
    model.perform()
    assert [(call.kind.name, call.physical) for call in model.seen] == [
        ("CHECKPOINT", "a"), ("SAVE", "a"), ("ROLLBACK", "b"), ("STOP_CONSUMPTION", ""),
    ]  # fmt: skip


def test_where_latest_was_is_saved_before_anything_is_delivered():
    model, dispatcher = quiet(FakeWindow("a", 0, 1))
    dispatcher = model.dispatcher = Dispatcher(Checkpoint(), retries_max=1)
    model.is_started = True
    dispatcher.started("a", SourceCheckpoint(uuid="a", scn=17))
    model.histories["a"] = []
    model.perform()
    assert model.store.sources["a"].scn == 17


def test_a_checkpoint_that_cannot_be_saved_ends_nothing_and_counts_as_not_saved():
    windows = [FakeWindow("a", n, n + 1) for n in range(50)]
    model, dispatcher = quiet(*windows)
    saved = model.store
    model.outcome = lambda call: OSError("no room") if call.kind is CallKind.SAVE else Result.SUCCESS
    for window in windows:
        dispatcher.feed(window, is_due=True)
        model.perform()
    assert not model.told
    assert model.store == saved
    assert dispatcher.is_unsaved("a")
    model.outcome = lambda call: Result.ERROR if call.kind is CallKind.END_WINDOW else Result.SUCCESS
    dispatcher.feed(FakeWindow("a", 50, 51), is_due=True)
    model.perform()
    assert [call.argument.scn for call in model.seen if call.kind is CallKind.REPLAY] == [0], "back to what is saved"


def test_a_store_that_says_somebody_must_decide_ends_the_source():
    model, dispatcher = quiet(FakeWindow("a", 0, 1))
    model.outcome = lambda call: LockHeld("another has it") if call.kind is CallKind.SAVE else Result.SUCCESS
    dispatcher.feed(FakeWindow("a", 0, 1), is_due=True)
    model.perform()
    assert [type(error) for _, error in model.told] == [LockHeld]
