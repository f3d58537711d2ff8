"""Arguments to payload bytes and back: what fits, what is refused with its path, and bytes nobody should trust."""

import datetime as dt
import decimal
import enum
import json
import math
import pickle
import subprocess
import sys
import uuid
import zoneinfo
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypedDict, Unpack

import msgspec
import pydantic
import pytest

from onejob.codec import CallCodec, decode_result, encode_result
from onejob.core.errors import ArgumentsInvalid, InvalidOption, PayloadTooLarge, Undecodable
from onejob.core.options import MAX_PAYLOAD


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


@dataclass
class User:
    name: str
    tags: list[str] = field(default_factory=list)
    age: int = 0


@dataclass(eq=False)
class Incomparable:
    name: str


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


class Pair(NamedTuple):
    left: int
    right: str


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    number: int = pydantic.Field(alias="orderNumber")
    placed: dt.datetime | None = None
    total: decimal.Decimal = decimal.Decimal(0)


class Opaque:
    def __repr__(self) -> str:
        return "Opaque()"


class Title(str):
    __slots__ = ()


class Options(TypedDict, total=False):
    retries: int
    label: str


def called(value: object) -> str:
    """The same name in every process, which a repr would not be."""
    return ascii(value)[:60] if isinstance(value, (str, bytes)) else type(value).__name__


def untyped(value=None, other=None):
    return value, other


def codec(function: Callable[..., Any], name: str = "send") -> CallCodec:
    return CallCodec(function, name)


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the handler would see as its first parameter."""
    made = codec(function)
    bound = made.bind(args, kwargs)
    back = made.decode(made.encode(bound))
    return made.mapping(back)[made.parameters[0]]


def refusal(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    made = codec(function)
    with pytest.raises(ArgumentsInvalid) as caught:
        made.encode(made.bind(args, kwargs))
    message = str(caught.value)
    assert message.startswith("send() ")
    assert "$" not in message
    return message


def test_a_call_becomes_one_json_object_without_raw_newlines() -> None:
    def send(user_id: int, kind: str, amount: float, tags: list[str]) -> None: ...

    made = codec(send)
    payload = made.encode(made.bind((1,), {"kind": "a\nb", "amount": 2, "tags": ("x", "y")}))
    assert payload == b'{"user_id":1,"kind":"a\\nb","amount":2.0,"tags":["x","y"]}'
    assert made.parameters == ("user_id", "kind", "amount", "tags")


def test_mapping_holds_every_parameter_by_name_with_its_typed_value() -> None:
    def send(a: int, b: float = 1.5, *rest: int, c: str = "c", **more: str) -> None: ...

    made = codec(send)
    assert made.mapping(made.bind((1,), {})) == {"a": 1, "b": 1.5, "rest": [], "c": "c", "more": {}}
    assert made.mapping(made.bind((1, 2, 3, 4), {"z": "z"})) == {
        "a": 1,
        "b": 2.0,
        "rest": [3, 4],
        "c": "c",
        "more": {"z": "z"},
    }


def test_call_hands_each_argument_over_the_way_its_parameter_takes_it() -> None:
    def send(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> Any:
        return a, b, rest, c, more

    made = codec(send)
    back = made.decode(made.encode(made.bind((1, 5, 6), {"c": 7, "a": 8, "z": 9})))
    assert made.call(back) == (1, 5, (6,), 7, {"a": 8, "z": 9})
    plain = codec(untyped)
    assert plain.call(plain.bind((1,), {"other": 2})) == (1, 2)


async def test_call_returns_the_coroutine_of_a_coroutine_function() -> None:
    async def send(a: int) -> int:
        return a + 1

    made = codec(send)
    assert await made.call(made.bind((1,), {})) == 2


def test_giving_a_default_changes_no_byte() -> None:
    def send(
        a: int = 123_456,
        b: str = "some text",
        c: list[int] = [],  # noqa: B006 - the case
        d: decimal.Decimal = decimal.Decimal("1.50"),
        e: list[int] = [1, 2],  # noqa: B006 - the case
        f: dt.datetime = dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        g: Color = Color.RED,
        h: float = 0.0,
    ) -> None: ...

    made = codec(send)
    given = {
        "a": int("123456"),
        "b": "".join(["some ", "text"]),
        "c": [],
        "d": decimal.Decimal("1.50"),
        "e": [1, 2],
        "f": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        "g": Color.RED,
        "h": float("0"),
    }
    left_out = made.encode(made.bind((), {}))
    assert made.encode(made.bind((), given)) == left_out
    assert left_out == b'{"e":[1,2]}'
    assert made.encode(made.bind((), {"h": -0.0})) == b'{"e":[1,2],"h":-0.0}'


def test_a_default_that_only_looks_equal_is_not_taken_for_the_default() -> None:
    def send(a: Any = 1, b: Any = 0.0) -> None: ...

    made = codec(send)
    back = made.decode(made.encode(made.bind((), {"a": True, "b": -0.0})))
    assert made.mapping(back)["a"] is True
    assert math.copysign(1, made.mapping(back)["b"]) == -1  # type: ignore[arg-type]


def test_a_mutable_default_is_made_anew_for_each_call() -> None:
    def send(items: list[int] = [1]) -> list[int]:  # noqa: B006 - the case
        items.append(2)
        return items

    made = codec(send)
    assert made.call(made.bind((), {})) == [1, 2]
    assert made.call(made.bind((), {})) == [1, 2]
    assert made.call(made.decode(b"{}")) == [1, 2]


def test_dataclasses_and_structs_may_be_defaults() -> None:
    def send(point: Point = Point(1), user: User = User("ann")) -> Any:  # noqa: B008 - the case
        return point, user

    made = codec(send)
    payload = made.encode(made.bind((), {}))
    assert made.encode(made.bind((Point(1),), {"user": User("ann")})) == payload
    assert made.call(made.decode(payload)) == (Point(1), User("ann"))


def test_a_sentinel_may_be_a_default() -> None:
    missing: Any = object()

    def send(a: Any = missing) -> bool:
        return a is missing

    made = codec(send)
    payload = made.encode(made.bind((), {}))
    assert payload == b"{}"
    assert made.call(made.decode(payload)) is True


def test_a_default_of_none_makes_none_welcome() -> None:
    def send(data: dict = None) -> None: ...  # noqa: RUF013 - the case

    assert there_and_back(send, None) is None
    assert there_and_back(send, {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (dt.datetime, dt.datetime(2024, 5, 1, 12, 30, 0, 123456, tzinfo=dt.UTC)),
        (dt.datetime, dt.datetime(2024, 5, 1, 12, 30)),  # noqa: DTZ001 - the case
        (dt.datetime, dt.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))),
        (dt.date, dt.date(2024, 2, 29)),
        (dt.time, dt.time(23, 59, 59, 999999)),
        (dt.timedelta, dt.timedelta(days=-1, microseconds=3)),
        (uuid.UUID, uuid.UUID(int=7)),
        (decimal.Decimal, decimal.Decimal("1.000000000000000000000000000000000001")),
        (bytes, b"\x00\xff"),
        (Color, Color.BLUE),
        (Level, Level.LOW),
        (User, User("ann", ["a"], 3)),
        (Incomparable, Incomparable("ann")),
        (Point, Point(1, 2.5)),
        (Pair, Pair(1, "x")),
        (set[str], {"a", "b", "c"}),
        (frozenset[int], frozenset({3, 1})),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2)),
        (dict[int, str], {1: "a"}),
        (dict[uuid.UUID, int], {uuid.UUID(int=1): 1}),
        (list[User], [User("a"), User("b", ["x"])]),
        (Order, Order(orderNumber=1, placed=dt.datetime(2024, 1, 1, tzinfo=dt.UTC))),
        (Order | None, None),
        (list[Order], [Order(orderNumber=1, total=decimal.Decimal("9.90"))]),
        (Options, {"retries": 1}),
        (Annotated[int, msgspec.Meta(ge=0)], 5),
        (object, {"a": [1]}),
    ],
    ids=called,
)
def test_typed_values_come_back_as_they_were_sent(hint: Any, value: Any) -> None:
    def send(value): ...

    send.__annotations__["value"] = hint
    back = there_and_back(send, value)
    if isinstance(value, Incomparable):
        assert back.name == value.name
    else:
        assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**64),
        2**200,
        10**4299,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        "NUL\0inside",
        "\U0001f600 é é",
        "",
        {"": {"a b": [None, True, 1.5, []]}},
        {"$ref": "x", "__class__": "os.system"},
    ],
    ids=called,
)
def test_json_values_round_trip_exactly_under_no_hint(value: Any) -> None:
    back = there_and_back(untyped, value)
    assert (back, type(back)) == (value, type(value))
    assert repr(back)[:4000] == repr(value)[:4000]


def test_a_tuple_under_no_hint_may_come_back_as_a_list() -> None:
    assert there_and_back(untyped, (1, (2, "a"))) == [1, [2, "a"]]
    assert there_and_back(untyped, {"a": (1,), "b": {"c": Title("t")}}) == {"a": [1], "b": {"c": "t"}}


def test_subclasses_that_equal_their_plain_value_are_taken() -> None:
    def send(value: str) -> None: ...

    assert there_and_back(send, Title("hello")) == "hello"
    assert there_and_back(untyped, OrderedDict(a=1)) == {"a": 1}
    assert there_and_back(untyped, Level.LOW) == 1


def test_an_equal_set_gives_equal_bytes_in_whatever_order_it_iterates() -> None:
    def send(names: set[str]) -> None: ...

    made = codec(send)
    names = [f"name-{number}" for number in range(50)]
    one = made.encode(made.bind((set(names),), {}))
    assert one == made.encode(made.bind(({*names[25:], *names[:25]},), {}))
    assert json.loads(one)["names"] == sorted(names)


def test_a_set_without_an_order_is_still_stored() -> None:
    def send(names: set[Color]) -> None: ...

    assert there_and_back(send, {Color.RED, Color.BLUE}) == {Color.RED, Color.BLUE}


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (int, "a", "args.value must be int, not 'a' (str); it is declared as int."),
        (int, True, "args.value must be int, not True (bool)"),
        (int, 1.5, "args.value must be int, not 1.5 (float)"),
        (str, None, "args.value must be str, not None (NoneType)"),
        (
            dt.datetime,
            "2024-01-01T00:00:00Z",
            "args.value must be datetime, not '2024-01-01T00:00:00Z' (str)",
        ),
        (dt.timedelta, 5, "args.value must be timedelta, not 5 (int)"),
        (uuid.UUID, str(uuid.UUID(int=1)), "args.value must be UUID"),
        (bytes, "text", "args.value must be bytes, not 'text' (str)"),
        (decimal.Decimal, 1.5, "args.value must be decimal, not 1.5 (float)"),
        (list[int], {"a": 1}, "args.value must be list, not {'a': 1} (dict)"),
        (list[int], [1, 2, "c"], "args.value[2] must be int, not 'c' (str); it is declared as list[int]."),
        (dict[str, int], {1: 1}, "args.value must have keys of type str"),
        (Color, "green", "args.value: Invalid enum value 'green'"),
        (User, 5, "args.value must be dict, not 5 (int); it is declared as User."),
        (User, {"name": "a", "tags": ["a", 1]}, "args.value.tags[1] must be str, not 1 (int)"),
        (Point, {"x": 1, "z": 2}, "args.value must be"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, "args.value: Expected `int` >= 0"),
        (Order, {"orderNumber": "one"}, "args.value: 1 validation error for Order"),
    ],
    ids=called,
)
def test_a_value_of_another_type_is_refused_with_path_value_and_declaration(
    hint: Any, value: Any, words: str
) -> None:
    def send(value): ...

    send.__annotations__["value"] = hint
    if hint is Point:
        words = "args.value: Object contains unknown field `z`"
        Point_strict = msgspec.defstruct("Strict", [("x", int)], forbid_unknown_fields=True)  # noqa: N806
        send.__annotations__["value"] = Point_strict
    message = refusal(send, value)
    assert words in message
    assert message.endswith("Pass a value of that type, or change the parameter's type hint.")


def _cycle() -> Any:
    inner: list[Any] = [1]
    inner.append({"again": inner})
    return inner


def _nested(levels: int, innermost: Any = 1) -> Any:
    value = innermost
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "args.value is not a finite number: nan."),
        ({"a": [1, {"b": math.inf}]}, "args.value.a[1].b is not a finite number: inf."),
        ({"a b": -math.inf}, "args.value['a b'] is not a finite number: -inf."),
        (User("a", [math.nan]), "args.value.tags[0] is not a finite number"),  # type: ignore[list-item]
        ({1: "a"}, "args.value is {1: 'a'} (dict) and would come back as {'1': 'a'} (dict)."),
        ({"x": {None: 1}}, "args.value.x has the key None, and keys must be strings"),
        ({True: 1}, "args.value has the key True, and keys must be strings"),
        ({(1, 2): 1}, "args.value has the key (1, 2), and keys must be strings"),
        (_cycle(), "args.value[1].again contains itself"),
        (_nested(65), "is nested more than 64 levels deep"),
        (_nested(2000), "is nested more than 64 levels deep"),
        (10**4300, "args.value has more than 4,300 digits: <int>."),
        ({"a": [10**5000]}, "args.value.a[0] has more than 4,300 digits"),
        ("\ud800", r"args.value holds a lone surrogate, which is not text: '\ud800'."),
        ({"a": ["x", "\udfff"]}, "args.value.a[1] holds a lone surrogate"),
        ({"\ud800": 1}, "args.value holds a lone surrogate"),
        (Opaque(), "args.value is of type Opaque, which cannot be stored: Opaque()."),
        ({"a": [Opaque()]}, "args.value.a[0] is of type Opaque"),
        (deque([1]), "args.value is of type deque"),
        (range(3), "args.value is of type range"),
        (iter([1]), "args.value is of type list_iterator"),
        (1j, "args.value is of type complex"),
        (untyped, "args.value is of type function"),
        (User, "args.value is of type type"),
        (ValueError("x"), "args.value is of type ValueError"),
        (msgspec.Raw(b"1\n2"), "args.value is of type Raw"),
    ],
    ids=called,
)
def test_what_json_cannot_carry_is_refused_with_its_path(value: Any, words: str) -> None:
    assert words in refusal(untyped, value)


def test_sixty_four_levels_are_allowed() -> None:
    assert there_and_back(untyped, _nested(64)) == _nested(64)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"when": dt.date(2024, 1, 1)}, "args.value.when is datetime.date(2024, 1, 1) (date)"),
        ([1, {"at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}], "args.value[1].at is datetime.datetime("),
        (uuid.UUID(int=1), "args.value is UUID('00000000-0000-0000-0000-000000000001') (UUID)"),
        (decimal.Decimal("1.5"), "and would come back as '1.5' (str)"),
        (b"abc", "args.value is b'abc' (bytes) and would come back as 'YWJj' (str)"),
        (Color.RED, "args.value is <Color.RED: 'red'> (Color) and would come back as 'red' (str)"),
        ({"u": User("a")}, "args.value.u is User(name='a', tags=[], age=0) (User)"),
        (Point(1), "args.value is Point(x=1, y=0.0) (Point)"),
        ({1, 2}, "args.value is {1, 2} (set) and would come back as [1, 2] (list)"),
        (Pair(1, "a"), "args.value is Pair(left=1, right='a') (Pair)"),
        (Order(orderNumber=1), "args.value is Order("),
    ],
    ids=called,
)
def test_a_rich_value_under_no_hint_is_refused_because_it_would_change_its_type(
    value: Any, words: str
) -> None:
    message = refusal(untyped, value)
    assert words in message
    assert "would come back as" in message
    assert "Annotate the parameter" in message


def test_wrong_types_inside_a_dataclass_are_refused_with_their_path() -> None:
    def send(user: User) -> None: ...

    assert "at args.user.age" in refusal(send, User("a", age="old"))  # type: ignore[arg-type]
    assert "at args.user.tags[1]" in refusal(send, User("a", ["x", 1]))  # type: ignore[list-item]


def test_a_model_that_does_not_come_back_equal_is_refused() -> None:
    class Measure(pydantic.BaseModel):
        value: float

    def send(measure): ...

    send.__annotations__["measure"] = Measure
    assert there_and_back(send, Measure(value=1.5)) == Measure(value=1.5)
    assert "args.measure" in refusal(send, Measure(value=math.nan))


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "is missing 'a', 'b': pass it, or give the parameter a default."),
        ((1,), {}, "is missing 'b'"),
        (
            (1, 2, 3, "four"),
            {},
            "takes at most 3 arguments by position and got 4; the first too many is 'four'.",
        ),
        ((1,), {"a": 2, "b": 3}, "got the argument 'a' twice, by position and by name"),
        ((1, 2), {"entty": 5}, "has no parameter 'entty' (given 5): did you mean 'entity'?"),
        ((1, 2), {"zzz": 5}, "has no parameter 'zzz' (given 5): its parameters are (a, b, c, entity)."),
        ((1, "x"), {}, "args.b must be int, not 'x' (str)"),
    ],
)
def test_a_call_that_does_not_fit_the_signature_says_how(args: Any, kwargs: Any, words: str) -> None:
    def send(a: int, b: int, c: int = 0, *, entity: int = 0) -> None: ...

    assert words in refusal(send, *args, **kwargs)


def test_positional_only_and_variable_parameters_are_told_apart() -> None:
    def send(a: int, /, *rest: int) -> None: ...

    assert "takes 'a' by position only" in refusal(send, a=1)
    assert "has no parameter 'rest'" in refusal(send, 1, rest=[1])
    assert "args.rest[1] must be int, not 'x' (str)" in refusal(send, 1, 2, "x")

    def gather(**more: Unpack[Options]) -> None: ...

    assert there_and_back(gather, retries=1) == {"retries": 1}
    assert "args.more.retries must be int" in refusal(gather, retries="1")


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Opaque, "values of Opaque cannot be stored"),
        (list[Opaque], "is declared as list["),
        (Callable[[], int], "'value' is declared as"),
        (Iterable[int], "Iterable cannot be stored"),
        (complex, "values of complex cannot be stored"),
        (msgspec.Raw, "values of Raw cannot be stored"),
        (
            dt.datetime | str,
            "'value' cannot be stored: Type unions may not contain more than one str-like type",
        ),
        (Mixed, "'value' cannot be stored: Enums must contain either all str or all int values"),
    ],
    ids=called,
)
def test_a_parameter_that_can_never_be_stored_is_refused_when_the_task_is_defined(
    hint: Any, words: str
) -> None:
    def send(value): ...

    send.__annotations__["value"] = hint
    with pytest.raises(InvalidOption) as caught:
        codec(send)
    assert "Task 'send': the parameter 'value'" in str(caught.value)
    assert words in str(caught.value)


def test_what_is_not_a_function_or_has_a_private_parameter_is_refused() -> None:
    def send(__secret: int) -> None: ...

    with pytest.raises(InvalidOption, match="'__secret' cannot be stored under that name"):
        codec(send)
    with pytest.raises(InvalidOption, match="must be a function"):
        codec(print)
    untold = lambda value: value  # noqa: E731 - has no hints until it gets a bad one
    untold.__annotations__["value"] = "1 +"
    with pytest.raises(InvalidOption, match="a type hint cannot be read"):
        codec(untold)


def test_a_hint_may_name_what_its_module_defines_later() -> None:
    def send(later: "Later") -> None: ...  # noqa: F821 - the case

    made = codec(send)
    with pytest.raises(
        InvalidOption, match=r"a type hint cannot be resolved .*'Later'.*outside of functions"
    ):
        made.bind((1,), {})
    try:
        globals()["Later"] = User
        assert made.mapping(made.bind((User("a"),), {})) == {"later": User("a")}
    finally:
        del globals()["Later"]


def test_lists_are_told_by_their_hints() -> None:
    def send(
        a: list, b: list[int], c: Annotated[list[int], "meta"], d: tuple[int, ...], e: Any, *f: int
    ) -> None: ...

    made = codec(send)
    assert [name for name in made.parameters if made.is_list(name)] == ["a", "b", "c"]
    assert not made.is_list("nothing")


@pytest.mark.accepts("G43", "G44")
def test_a_payload_over_one_megabyte_is_refused_with_its_real_size() -> None:
    made = codec(untyped)
    room = MAX_PAYLOAD - len(b'{"value":""}')
    assert len(made.encode(made.bind(("x" * room,), {}))) == MAX_PAYLOAD
    with pytest.raises(PayloadTooLarge) as caught:
        made.encode(made.bind(("x" * (1_234_567 - len(b'{"value":""}')),), {}))
    assert str(caught.value).startswith(
        "Job data exceeds maximum size (1234567 bytes > 1MB). "
        "Use smaller payloads or store large data externally."
    )
    with pytest.raises(PayloadTooLarge):
        made.encode(made.bind(("x" * (room + 1),), {}))


class Bomb:
    def __reduce__(self) -> Any:
        return sys.exit, (1,)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"[1,2]",
        b"nonsense",
        b'{"a":1',
        b'{"a":1}trailing',
        b'{"a":1}\n{"a":2}',
        b'{"a":"1"}',
        b'{"a":1.5}',
        b'{"a":null}',
        b"{}",
        b'{"a":1,"unknown":2}',
        b'{"a":1,"a":2}',
        b'{"a":1,"b":{"c":1,"c":2}}',
        b'{"a":1,"b":[{"c":{},"c":{}}]}',
        b'{"a":1,"b":NaN}',
        b'{"a":1,"b":1e999}',
        b'{"a":1,"b":"\xff"}',
        b'{"a":1,"b":"\\ud800"}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":1,"b":' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"a":1,"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":1,"b":"' + b"x" * MAX_PAYLOAD + b'"}',
        pickle.dumps(Bomb()),
        b"\x1f\x8b\x08\x00",
    ],
    ids=called,
)
def test_bytes_that_are_no_payload_of_this_task_are_undecodable(payload: bytes) -> None:
    def send(a: int, b: Any = None) -> None: ...

    with pytest.raises(Undecodable) as caught:
        codec(send).decode(payload)
    assert str(caught.value).startswith("send: ")
    assert "$" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_json_written_by_others_is_read_too() -> None:
    def send(a: int, b: Any = None, c: int = 3) -> None: ...

    made = codec(send)
    assert made.mapping(made.decode(b' { "b" : {"z":1, "y":[]} , "c":3, "a":1 } ')) == {
        "a": 1,
        "b": {"z": 1, "y": []},
        "c": 3,
    }


def test_a_constructor_that_raises_makes_a_payload_undecodable() -> None:
    @dataclass
    class Picky:
        name: str

        def __post_init__(self) -> None:
            raise LookupError("not this one")

    def send(picky): ...

    send.__annotations__["picky"] = Picky
    with pytest.raises(Undecodable, match="not this one"):
        codec(send).decode(b'{"picky":{"name":"a"}}')


def test_collected_calls_read_as_one_call_with_all_their_items_in_order() -> None:
    def send(label: str, items: list[int], others: list[int] = []) -> None: ...  # noqa: B006 - the case

    made = codec(send)
    lines = [
        made.encode(made.bind((), {"label": label, "items": items}))
        for label, items in (("first", [1, 2]), ("second", []), ("third", [3]))
    ]
    back = made.decode(b"\n".join(lines), into="items")
    assert made.mapping(back) == {"label": "first", "items": [1, 2, 3], "others": []}
    assert made.mapping(made.decode(lines[0], into="items"))["items"] == [1, 2]
    for into in (None, "label", "missing"):
        with pytest.raises(Undecodable):
            made.decode(b"\n".join(lines), into=into)
    with pytest.raises(Undecodable):
        made.decode(lines[0] + b"\n" + b'{"label":1,"items":[]}', into="items")


def test_collected_calls_need_no_name_where_only_one_list_could_have_collected_them() -> None:
    def send(items: list[int], label: str = "") -> None: ...

    made = codec(send)
    assert made.mapping(made.decode(b'{"items":[1]}\n{"items":[2]}'))["items"] == [1, 2]


@pytest.mark.parametrize(
    ("value", "returns"),
    [
        (None, int),
        (0, int),
        ("text", Any),
        ([1, {"a": None}], Any),
        (User("a", ["b"], 1), User),
        (Order(orderNumber=3), Order),
        ({1: Color.RED}, dict[int, Color]),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime),
        ({uuid.UUID(int=1)}, set[uuid.UUID]),
        (b"bytes", bytes),
    ],
    ids=called,
)
def test_results_come_back_as_the_return_annotation_says(value: Any, returns: Any) -> None:
    assert decode_result(encode_result(value), returns) == value


def test_no_result_is_stored_as_nothing() -> None:
    assert encode_result(None) is None
    assert decode_result(None, int) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "result is not a finite number: nan."),
        ({"rows": [1, Opaque()]}, "result.rows[1] is of type Opaque"),
        (["\ud800"], "result[0] holds a lone surrogate"),
        ({"n": 10**5000}, "result.n has more than 4,300 digits"),
        (_cycle(), "result[1].again contains itself"),
        (_nested(70), "is nested more than 64 levels deep"),
        ({None: 1}, "result has the key None"),
    ],
    ids=["nan", "opaque", "surrogate", "digits", "cycle", "deep", "key"],
)
def test_a_result_that_cannot_be_encoded_is_refused_with_its_path(value: Any, words: str) -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        encode_result(value)
    assert words in str(caught.value)


def test_a_result_over_one_megabyte_is_refused() -> None:
    assert len(encode_result("x" * (MAX_PAYLOAD - 2)) or b"") == MAX_PAYLOAD
    with pytest.raises(PayloadTooLarge, match=r"The result exceeds maximum size \(1048577 bytes > 1MB\)"):
        encode_result("x" * (MAX_PAYLOAD - 1))


@pytest.mark.parametrize("data", [b"", b"{", b'"text"', b"[" * 100_000, b"1.5"])
def test_a_stored_result_of_another_type_is_undecodable(data: bytes) -> None:
    with pytest.raises(Undecodable, match="the result is not int"):
        decode_result(data, int)


def test_the_return_annotation_is_known_to_the_codec() -> None:
    def send() -> list[User]: ...  # type: ignore[empty-body]

    assert codec(send).result_type == list[User]
    assert codec(untyped).result_type is Any


def test_pydantic_is_not_needed() -> None:
    check = "import sys, onejob.codec; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
