"""What the driver does to the positions of whole streams, while nothing writes them: another number of buckets, and
streams that go on by another name.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from databus.core import SEQ_DONE, Pair, SourceCheckpoint, UnsupportedFeature
from databus.tasks._direct import Bucket
from databus.tasks._written import StreamBefore, Written, brought_by_all, furthest
from databus.tasks.kafka._positions import BucketId, Position, of_output, positions_of
from databus.tasks.kafka._session import Session
from databus.tasks.kafka._writer import KafkaWriter


def switch_buckets(
    writer: KafkaWriter,
    pipeline: str,
    output: str,
    streams: Collection[str] | None = None,
    ledger: Collection[Bucket] = (),
) -> None:
    """Have an output's positions be those of as many buckets as it has now. While nothing writes.

    All buckets of a stream have to stand at one place, as they do when no batch was broken off. Whoever writes older
    buckets is shut out. streams: those that are written now, or gone on from; others stay as they are, for nobody could
    have them written once more. ledger: as `Positions.read` takes it. Raises `UnsupportedFeature`.
    """
    from confluent_kafka import KafkaException

    topic = writer.control_topic
    if topic is None:
        return
    positions = positions_of(writer.cluster, topic)
    for stream, found in of_output(positions.read(ledger=ledger), pipeline, output):
        is_left = streams is not None and stream not in streams
        if is_left or {each.buckets for each in found.values()} == {writer.buckets}:
            continue
        before = max(each.buckets for each in found.values())
        numbers = sorted({*found, *range(before)})  # one without a position has written nothing yet
        sessions = [Session(writer.cluster, topic, BucketId(pipeline, output, stream, number)) for number in numbers]
        try:
            for each in sessions:
                each.begin()
            to = _common_place([each.position for each in sessions], output, stream, before, writer.buckets)
            _move(writer, sessions[0], BucketId(pipeline, output, stream, 0), numbers[-1] + 1, to)
        except KafkaException as error:
            raise writer.cluster.error(error, f"changing the number of buckets of {stream}") from error
        finally:
            for each in sessions:
                each.close()


def _common_place(positions: list[Position | None], output: str, stream: str, before: int, buckets: int) -> Position:
    places = [None if each is None else _as_told(each) for each in positions]
    first = positions[0]
    if first is None or any(each != places[0] for each in places):
        raise UnsupportedFeature(
            f"outputs.{output}: the buckets of {stream} do not stand at one place, so that there cannot be {buckets} "
            f"now: a batch was broken off. Say `buckets: {before}`, let it run until a batch is whole, and change "
            f"the number then"
        )
    is_alike = all(each is not None and each.counts == first.counts for each in positions)
    return replace(first, buckets=buckets, counts=first.counts if is_alike else None, left=_left_by_all(positions))


def _as_told(position: Position) -> object:
    """What has to be alike for keys to move to other buckets."""
    at = position.at
    written = sorted((each.at.pair, repr(each.selections), each.of) for each in position.written)
    return None if at is None else (at.pair, at.log), written


def _left_by_all(positions: Sequence[Position | None]) -> tuple[Written, ...]:
    """What holds for the keys of all buckets."""
    found: dict[object, list[Written]] = {}
    for each in (each for position in positions if position is not None for each in position.left):
        found.setdefault((each.of, each.selections), []).append(each)
    in_all = [each for each in found.values() if len(each) == len(positions)]
    return tuple(min(each, key=lambda one: one.at.pair) for each in in_all)


def _move(writer: KafkaWriter, session: Session, first: BucketId, before: int, to: Position) -> None:
    value = to.value
    numbers = range(max(before, writer.buckets))
    session.put({replace(first, number=number).key: value if number < writer.buckets else None for number in numbers})


def go_on(writer: KafkaWriter, bucket: Bucket, before: Sequence[StreamBefore], over: Collection[str]) -> None:
    """Have the buckets of a stream know what those of the streams know that it goes on from, of which every earlier
    writer is shut out. Their ledger may not know of all that they wrote.

    bucket: of the stream, any of them. over: those of `before` that nobody needs any more: their positions are
    forgotten, so that a later stream of that name does not begin there. May be done again. Raises `UnsupportedFeature`.
    """
    from confluent_kafka import KafkaException

    topic = writer.control_topic
    if topic is None:
        return
    known = dict(of_output(positions_of(writer.cluster, topic).read(), bucket.pipeline, bucket.output))
    names = sorted({each.name for each in before})
    numbers = sorted({*range(writer.buckets), *(number for name in names for number in known.get(name, ()))})
    mine = replace(bucket, number=0)
    places: dict[int, Position] = {}
    try:
        for number in numbers:
            found = {name: _shut_out(writer, topic, mine, name, number) for name in {*names, mine.stream}}
            places[number] = _place_after(before, found, mine, writer.buckets)
        _put(writer, topic, mine, places, [each for each in names if each in over])
    except KafkaException as error:
        raise writer.cluster.error(error, f"going on with {bucket.stream}") from error


def _shut_out(writer: KafkaWriter, topic: str, bucket: Bucket, stream: str, number: int) -> Position | None:
    """Returns where it stands that nobody writes any more."""
    session = Session(writer.cluster, topic, BucketId(bucket.pipeline, bucket.output, stream, number))
    try:
        session.begin()
        return session.position
    finally:
        session.close()


def _place_after(
    before: Sequence[StreamBefore], found: Mapping[str, Position | None], bucket: Bucket, buckets: int
) -> Position:
    """Where a bucket stands that goes on from those of other streams. found: their positions, and its own, by name."""
    names = tuple(sorted({each.name for each in before}))
    mine = found[bucket.stream]
    is_told = mine is not None and (mine.of, mine.selections, mine.before) == (bucket.of, bucket.selections, names)
    if mine is not None and is_told:
        return mine  # somebody was killed before the ledger knew; what he went on from may be forgotten since
    known = [position for name in names if (position := found[name]) is not None]
    wrong = next((each.buckets for each in known if each.buckets != buckets), None)
    if wrong is not None:
        raise UnsupportedFeature(
            f"outputs.{bucket.output}: {bucket.stream} goes on with what was written in {wrong} buckets, and is to be "
            f"in {buckets} now: say `buckets: {wrong}`, let it run until a batch is whole, and change the number then"
        )
    ends = [_end_of(each, found[each.name]) for each in before]
    reached = [each for each in ends if each is not None and each.scn > 0]
    at = min(reached, key=_pair) if len(reached) == len(ends) else None
    if at is not None and bucket.known is not None:
        at = max(at, bucket.known, key=_pair)  # there may have been no rows to tell of for a while
    counts = known[0].counts if len(known) == len(before) == 1 and known[0].at == at else None
    brought = [said for each in before if each.is_whole for said in _brought(each, found[each.name])]
    brought += _brought_by_branches([each for each in before if each.is_branch], found)
    written = furthest([*brought, *bucket.written], (0, SEQ_DONE) if at is None else at.pair)
    left = () if mine is None else mine.to_leave
    return Position(at, buckets, counts, bucket.of, bucket.selections, written, left, names)


def _pair(at: SourceCheckpoint) -> Pair:
    return at.pair


def _end_of(stream: StreamBefore, position: Position | None) -> SourceCheckpoint | None:
    """Up to where all of the tables are written that a stream brought, as far as that is known."""
    written = stream.written
    if position is None or position.at is None or not _is_of(stream, position):
        return None if written is None else written.at
    return position.at if written is None else max(position.at, written.at, key=_pair)


def _brought(stream: StreamBefore, position: Position | None) -> Sequence[Written]:
    """What a stream has written of which tables."""
    written = stream.written
    told = () if position is None else position.brought
    if written is None:
        return told
    if position is None or position.at is None or not _is_of(stream, position):
        return (*told, written)
    return (*told, written, replace(written, at=position.at))


def _brought_by_branches(before: Sequence[StreamBefore], found: Mapping[str, Position | None]) -> Sequence[Written]:
    """The same of streams that brought other rows of the same tables."""
    told: list[Written] = []
    for brought in dict.fromkeys((each.written.of, each.written.selections) for each in before if each.written):
        beside = [each for each in before if each.written and (each.written.of, each.written.selections) == brought]
        ends = [(_end_of(each, found[each.name]), _brought(each, found[each.name])) for each in beside]
        told += brought_by_all(ends)
    return told


def _is_of(stream: StreamBefore, position: Position) -> bool:
    """Whether a position is about the tables that a stream brought: it may have got others since."""
    written = stream.written
    if written is None:
        return not stream.is_current
    if position.selections is None:  # of old
        return not stream.is_current and position.of in ("", written.of)
    return (position.of, position.selections) == (written.of, written.selections)


def _put(writer: KafkaWriter, topic: str, bucket: Bucket, places: Mapping[int, Position], over: Sequence[str]) -> None:
    """In one transaction: where the buckets of a stream stand, and that others are forgotten."""
    ids = {number: BucketId(bucket.pipeline, bucket.output, bucket.stream, number) for number in places}
    messages: dict[bytes, bytes | None] = {}
    for number, place in places.items():
        messages[ids[number].key] = place.value if number < writer.buckets else None
        messages |= dict.fromkeys((replace(ids[number], stream=name).key for name in over), None)
    session = Session(writer.cluster, topic, ids[0])
    try:
        session.begin()
        session.put(messages)
    finally:
        session.close()
