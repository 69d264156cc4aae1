"""The Common Expression Language, compiled once for each expression to functions of Python.

Two libraries were tried and not taken; ADR 62 says why. Types are checked when an expression is evaluated,
not before: the API server has refused what cannot be right. `&&`, `||` and the macros all() and exists()
absorb errors as the specification says."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cmp_to_key
from typing import Any

from scheduler_worker.core.devices import cel_functions, cel_values
from scheduler_worker.core.devices.cel_functions import FUNCTIONS, METHODS, Overload
from scheduler_worker.core.devices.cel_syntax import (
    Call,
    CelSyntaxError,
    Conditional,
    Identifier,
    Index,
    Junction,
    ListOf,
    Literal,
    MapOf,
    Node,
    Select,
    parse,
)
from scheduler_worker.core.devices.cel_values import (
    NO_OVERLOAD,
    NONE,
    CelError,
    Optional,
    Value,
)

# The most steps of macros in one evaluation. Kubernetes limits a cost, of which a step is at least one.
MOST_STEPS = 1_000_000

Scope = dict[str, Any]  # values by name; under _BUDGET the steps that are left, as a list of one
_Evaluate = Callable[[Scope], Value]
_BUDGET = "#"


class CelExpression:
    """A compiled expression. Raises CelSyntaxError where the text is none."""

    def __init__(self, text: str, variables: frozenset[str]) -> None:
        self.text = text
        try:
            self._evaluate = _compile(parse(text), variables)
        except RecursionError:
            raise CelSyntaxError("the expression is nested too deeply") from None

    def evaluate(self, values: Mapping[str, Value]) -> Value:
        """The value with these variables. Raises CelError."""
        try:
            return self._evaluate({**values, _BUDGET: [MOST_STEPS]})
        except RecursionError:
            raise CelError("the expression is nested too deeply") from None


def _compile(node: Node, names: frozenset[str]) -> _Evaluate:
    return _COMPILERS[type(node)](node, names)


def _literal(node: Literal, _names: frozenset[str]) -> _Evaluate:
    value = node.value
    return lambda _scope: value


def _identifier(node: Identifier, names: frozenset[str]) -> _Evaluate:
    name = node.name
    if name not in names and name in cel_values.TYPES:
        return lambda _scope: cel_values.TYPES[name]
    if name not in names:
        raise CelSyntaxError(f"undeclared reference to '{name}' (in container '')")
    return lambda scope: scope[name]


def _select(node: Select, names: frozenset[str]) -> _Evaluate:
    return _selection(_compile(node.of, names), _literal(Literal(node.field), names), optional=node.optional)


def _index(node: Index, names: frozenset[str]) -> _Evaluate:
    return _selection(_compile(node.of, names), _compile(node.key, names), optional=node.optional)


def _list(node: ListOf, names: frozenset[str]) -> _Evaluate:
    items = [_compile(item, names) for item in node.items]
    return lambda scope: [item(scope) for item in items]


def _map(node: MapOf, names: frozenset[str]) -> _Evaluate:
    pairs = [(_compile(key, names), _compile(value, names)) for key, value in node.entries]
    return lambda scope: _map_of(pairs, scope)


def _map_of(pairs: list[tuple[_Evaluate, _Evaluate]], scope: Scope) -> dict[Value, Value]:
    found = {}
    for key, value in pairs:
        name = key(scope)
        if cel_values.kind_of(name) not in ("bool", "int", "uint", "string"):
            raise CelError("unsupported key type")
        found[name] = value(scope)
    return found


def _selection(of: _Evaluate, key: _Evaluate, *, optional: bool) -> _Evaluate:
    def select(scope: Scope) -> Value:
        container, wanted = of(scope), key(scope)
        if isinstance(container, Optional):
            return _found(container.value, wanted) if container.present else NONE
        if optional:
            return _found(container, wanted)
        try:
            if isinstance(container, Mapping):
                return container[wanted]
            if type(wanted) is int:  # Python would count from the end
                return container[wanted if wanted >= 0 else len(container)]
        except KeyError:
            raise cel_values.key_missing(wanted) from None
        except IndexError:
            raise CelError(f"index out of bounds: {wanted}") from None
        except TypeError:
            pass
        raise CelError(NO_OVERLOAD)

    return select


def _found(container: Value, key: Value) -> Optional:
    if isinstance(container, Mapping):
        try:
            return Optional(container[key])
        except KeyError:
            return NONE
    if isinstance(container, list) and type(key) is int:
        return Optional(container[key]) if 0 <= key < len(container) else NONE
    raise CelError(NO_OVERLOAD)


def _junction(node: Junction, names: frozenset[str]) -> _Evaluate:
    parts = [_compile(part, names) for part in node.parts]
    decisive = node.operator == "||"

    def judge(scope: Scope) -> Value:
        return _absorbing(((part, scope) for part in parts), decisive=decisive)

    return judge


def _absorbing(conditions: Iterable[tuple[_Evaluate, Scope]], *, decisive: bool) -> bool:
    """The decisive value if any condition has it, whatever others fail. Raises CelError."""
    problem: CelError | None = None
    for condition, scope in conditions:
        try:
            value: object = condition(scope)
        except CelError as exc:  # noqa: PERF203 - a later condition may decide
            problem = problem or exc
        else:
            if value is decisive:
                return decisive
            if not isinstance(value, bool):
                problem = problem or CelError(NO_OVERLOAD)
    if problem is not None:
        raise problem
    return not decisive


def _conditional(node: Conditional, names: frozenset[str]) -> _Evaluate:
    condition, then, otherwise = (_compile(n, names) for n in (node.condition, node.then, node.otherwise))

    def choose(scope: Scope) -> Value:
        chosen = condition(scope)
        if not isinstance(chosen, bool):
            raise CelError(NO_OVERLOAD)
        return then(scope) if chosen else otherwise(scope)

    return choose


def _call(node: Call, names: frozenset[str]) -> _Evaluate:
    macro = _MACROS.get((node.name, node.target is not None, len(node.args)))
    if macro is not None and (node.name != "bind" or node.target == Identifier("cel")):
        return macro(node, names)
    if node.name in _OPERATORS:
        operator = _OPERATORS[node.name]
        sides = [_compile(arg, names) for arg in node.args]
        return lambda scope: operator(*[side(scope) for side in sides])
    overloads, args = _function(node)
    compiled = [_compile(arg, names) for arg in args]
    if args and all(isinstance(arg, Literal) for arg in args):
        try:
            constant = cel_functions.call(overloads, [evaluate({}) for evaluate in compiled])
        except CelError:
            pass  # it may stand in a branch that is never taken
        else:
            return lambda _scope: constant
    return lambda scope: cel_functions.call(overloads, [evaluate(scope) for evaluate in compiled])


def _function(node: Call) -> tuple[list[Overload], list[Node]]:
    """The overloads of a call, and its arguments with the target as the first."""
    qualified = f"{node.target.name}.{node.name}" if isinstance(node.target, Identifier) else node.name
    if qualified in FUNCTIONS and (node.target is None or "." in qualified):
        overloads, args = FUNCTIONS[qualified], list(node.args)
    elif node.target is not None and node.name in METHODS:
        overloads, args = METHODS[node.name], [node.target, *node.args]
    else:
        raise CelSyntaxError(f"undeclared reference to '{node.name}' (in container '')")
    if all(len(kinds) != len(args) for kinds, _ in overloads):
        raise CelSyntaxError(f"found no matching overload for '{node.name}'")
    return overloads, args


def _not(value: Value) -> bool:
    if not isinstance(value, bool):
        raise CelError(NO_OVERLOAD)
    return not value


_OPERATORS: dict[str, Callable[..., Value]] = {
    "==": cel_values.equal,
    "!=": lambda a, b: not cel_values.surely_equal(a, b),
    "<": lambda a, b: cel_values.compare(a, b) < 0,
    "<=": lambda a, b: cel_values.compare(a, b) <= 0,
    ">": lambda a, b: cel_values.compare(a, b) > 0,
    ">=": lambda a, b: cel_values.compare(a, b) >= 0,
    "in": lambda a, b: cel_values.contains(b, a),
    **{sign: lambda a, b, sign=sign: cel_values.arithmetic(sign, a, b) for sign in "+-*/%"},
    "!": _not,
    "-_": cel_values.negated,
}


# Macros: calls whose arguments are not all evaluated, or with a variable of their own.


def _has(node: Call, names: frozenset[str]) -> _Evaluate:
    [field] = node.args
    if not isinstance(field, Select):
        raise CelSyntaxError("invalid argument to has() macro")
    of, name = _compile(field.of, names), field.field

    def has(scope: Scope) -> Value:
        container = of(scope)
        if isinstance(container, Optional):
            if not container.present:
                return False
            container = container.value
        if not isinstance(container, Mapping):
            raise CelError(NO_OVERLOAD)
        return name in container

    return has


def _variable(node: Node) -> str:
    if not isinstance(node, Identifier):
        raise CelSyntaxError("argument must be a simple name")
    return node.name


def _bind(node: Call, names: frozenset[str]) -> _Evaluate:
    name = _variable(node.args[0])
    value, body = _compile(node.args[1], names), _compile(node.args[2], names | {name})

    def bind(scope: Scope) -> Value:
        return body({**scope, name: value(scope)})

    return bind


def _optional_map(node: Call, names: frozenset[str]) -> _Evaluate:
    of, name = _target(node, names), _variable(node.args[0])
    body = _compile(node.args[1], names | {name})
    flat = node.name == "optFlatMap"

    def mapped(scope: Scope) -> Value:
        optional = of(scope)
        if not isinstance(optional, Optional):
            raise CelError(NO_OVERLOAD)
        if not optional.present:
            return NONE
        value = body({**scope, name: optional.value})
        return value if flat else Optional(value)

    return mapped


def _target(node: Call, names: frozenset[str]) -> _Evaluate:
    assert node.target is not None  # noqa: S101 - the table of macros asks for it
    return _compile(node.target, names)


def _items(of: _Evaluate, scope: Scope, name: str) -> Iterator[Scope]:
    """The scope with each item of a list or each key of a map as the variable."""
    container = of(scope)
    if not isinstance(container, (list, Mapping)):
        raise CelError(NO_OVERLOAD)
    budget = scope[_BUDGET]
    for item in container:
        _spend(budget)
        yield {**scope, name: item}


def _quantified(node: Call, names: frozenset[str]) -> _Evaluate:
    of, name = _target(node, names), _variable(node.args[0])
    body, decisive = _compile(node.args[1], names | {name}), node.name == "exists"

    def judge(scope: Scope) -> Value:
        scopes = _items(of, scope, name)
        return _absorbing(((body, each) for each in scopes), decisive=decisive)

    return judge


def _comprehension(node: Call, names: frozenset[str]) -> _Evaluate:
    of, name = _target(node, names), _variable(node.args[0])
    bodies = [_compile(arg, names | {name}) for arg in node.args[1:]]
    kind = node.name

    def collect(scope: Scope) -> Value:
        scopes = _items(of, scope, name)
        if kind == "map":
            chosen = scopes if len(bodies) == 1 else (each for each in scopes if bodies[0](each) is True)
            return [bodies[-1](each) for each in chosen]
        matching = [each[name] for each in scopes if bodies[0](each) is True]
        return matching if kind == "filter" else len(matching) == 1

    return collect


def _pairs(of: _Evaluate, scope: Scope, names: tuple[str, str]) -> Iterator[Scope]:
    """The scope with each index and item of a list, or key and value of a map, as the variables."""
    container = of(scope)
    if not isinstance(container, (list, Mapping)):
        raise CelError(NO_OVERLOAD)
    budget = scope[_BUDGET]
    for key, value in container.items() if isinstance(container, Mapping) else enumerate(container):
        _spend(budget)
        yield {**scope, names[0]: key, names[1]: value}


def _spend(budget: list[int]) -> None:
    budget[0] -= 1
    if budget[0] < 0:
        raise CelError("operation cancelled: actual cost limit exceeded")


def _variables(node: Call) -> tuple[str, str]:
    first, second = _variable(node.args[0]), _variable(node.args[1])
    if first == second:
        raise CelSyntaxError(f"duplicate variable name: {first}")
    return first, second


def _quantified_pairs(node: Call, names: frozenset[str]) -> _Evaluate:
    of, pair = _target(node, names), _variables(node)
    body, kind = _compile(node.args[2], names.union(pair)), node.name

    def judge(scope: Scope) -> Value:
        scopes = _pairs(of, scope, pair)
        if kind in ("all", "exists"):
            return _absorbing(((body, each) for each in scopes), decisive=kind == "exists")
        return sum(_true(body(each)) for each in scopes) == 1

    return judge


def _true(value: Value) -> bool:
    if not isinstance(value, bool):
        raise CelError(NO_OVERLOAD)
    return value


def _transformed(node: Call, names: frozenset[str]) -> _Evaluate:
    of, pair = _target(node, names), _variables(node)
    bodies = [_compile(arg, names.union(pair)) for arg in node.args[2:]]
    kind = node.name

    def transform(scope: Scope) -> Value:
        scopes = _pairs(of, scope, pair)
        chosen = scopes if len(bodies) == 1 else (each for each in scopes if _true(bodies[0](each)))
        if kind == "transformList":
            return [bodies[-1](each) for each in chosen]
        found: dict[Value, Value] = {}
        for each in chosen:
            value = bodies[-1](each)
            entries = value if kind == "transformMapEntry" else {each[pair[0]]: value}
            if not isinstance(entries, Mapping):
                raise CelError(NO_OVERLOAD)
            for key, item in entries.items():
                if key in found:
                    raise CelError(f"insert failed: key {cel_values.text_of(key)} already exists")
                found[key] = item
        return found

    return transform


def _by_key(one: tuple[Value, Value], other: tuple[Value, Value]) -> int:
    return cel_values.compare(one[0], other[0])


def _sorted_by(node: Call, names: frozenset[str]) -> _Evaluate:
    of, name = _target(node, names), _variable(node.args[0])
    body = _compile(node.args[1], names | {name})

    def order(scope: Scope) -> Value:
        keyed: list[tuple[Value, Value]] = [(body(each), each[name]) for each in _items(of, scope, name)]
        keyed.sort(key=cmp_to_key(_by_key))
        return [item for _, item in keyed]

    return order


_MACROS: dict[tuple[str, bool, int], Callable[[Call, frozenset[str]], _Evaluate]] = {
    ("has", False, 1): _has,
    ("bind", True, 3): _bind,
    ("optMap", True, 2): _optional_map,
    ("optFlatMap", True, 2): _optional_map,
    ("all", True, 2): _quantified,
    ("exists", True, 2): _quantified,
    ("exists_one", True, 2): _comprehension,
    **{(name, True, 3): _quantified_pairs for name in ("all", "exists", "exists_one", "existsOne")},
    **{
        (name, True, count): _transformed
        for name in ("transformList", "transformMap", "transformMapEntry")
        for count in (3, 4)
    },
    ("sortBy", True, 2): _sorted_by,
    ("map", True, 2): _comprehension,
    ("map", True, 3): _comprehension,
    ("filter", True, 2): _comprehension,
}

_COMPILERS: dict[type, Callable[[Any, frozenset[str]], _Evaluate]] = {
    Literal: _literal,
    Identifier: _identifier,
    Select: _select,
    Index: _index,
    Junction: _junction,
    Conditional: _conditional,
    ListOf: _list,
    MapOf: _map,
    Call: _call,
}
