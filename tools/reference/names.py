"""The names that HOSS uses in the environment and in the metadata of objects. A test finds missing names."""

from dataclasses import dataclass

from hoss.client.access import TLS_DIR_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from hoss.manifests.gangs import GROUP_ANNOTATIONS, GROUP_LABEL, MIN_AVAILABLE_ANNOTATION
from hoss.manifests.pod import ANNOTATION as DURING_EXECUTION
from hoss.manifests.pod import MOVABLE_ANNOTATION
from hoss.model.node import NOISY_LABEL
from hoss.model.resources import DEVICE_RESOURCE, DEVICE_SHARE_RESOURCE
from hoss.redis.url import PASSWORD_VARIABLE
from hoss.telemetry.collector import ENDPOINT, INTERVAL, PROTOCOL
from hossctl.cli import QUIET
from hossctl.compare.modes import PARTITION
from hossctl.local.control_plane import ASSETS_VARIABLE, CACHE_VARIABLE
from hossctl.traces.openb import CARD_MODEL_LABEL
from scheduler_worker.config import STRATEGY_LABEL


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the environment."""

    name: str
    reader: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Name:
    """An annotation, label or resource, and its owner."""

    name: str
    owner: str
    meaning: str


_EVERYONE, _COMMANDS, _CLIENTS, _SERVICES = "everything", "`hoss`", "clients", "services"

VARIABLES = (
    Variable(
        "HOSS_DISPATCHER",
        _CLIENTS,
        "Where the dispatcher is, `HOST:PORT`, several with commas; `--dispatcher` wins over it.",
    ),
    Variable("HOSS_RESOLVER", _CLIENTS, "Where the resolvers are, likewise; `--resolver` wins over it."),
    Variable(
        "HOSS_CONTEXT",
        _CLIENTS,
        "The context of a command or client without an address; else the one that `hoss login` or `hoss"
        " context use`"
        " chose.",
    ),
    Variable(
        TLS_DIR_VARIABLE,
        "clients",
        "A directory with `ca.crt`, `tls.crt` and `tls.key` to connect with; else that of the address's"
        " context.",
    ),
    Variable(TOKEN_VARIABLE, "clients", "A bearer token; else that of the address's context, if it has one."),
    Variable(
        TOKEN_FILE_VARIABLE,
        "clients",
        "A file with a bearer token, which is followed; HOSS_TOKEN counts first.",
    ),
    Variable(
        "HOSS_HOME",
        "clients",
        "Where the local platform keeps its data, logs and keys, and where contexts are; else "
        "`$XDG_STATE_HOME/hoss`, else `~/.hoss`.",
    ),
    Variable(QUIET, _COMMANDS, "Set to anything: as with `--quiet`."),
    Variable("HOSS_DEBUG", _COMMANDS, "`1`: an error also says where in the code it came from."),
    Variable("HOSS_LOG", _SERVICES, "`console` or `json`; else console on a terminal and json elsewhere."),
    Variable(
        PASSWORD_VARIABLE, _EVERYONE, "Redis' password, where the URL has none and names no file with one."
    ),
    Variable(ENDPOINT, _SERVICES, "The HTTP address of a collector that traces and metrics are sent to."),
    Variable(
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        _SERVICES,
        "One signal's own address, used as it stands; likewise `..._TRACES_ENDPOINT`, `_PROTOCOL` and "
        "`_HEADERS`.",
    ),
    Variable(
        "OTEL_METRICS_EXPORTER", _SERVICES, "`none`: metrics are not sent; likewise `OTEL_TRACES_EXPORTER`."
    ),
    Variable(
        "OTEL_EXPORTER_OTLP_HEADERS",
        _SERVICES,
        "`name=value,...`, such as a key that the collector asks for. OpenTelemetry's `..._TIMEOUT`,"
        " `_COMPRESSION` and `_CERTIFICATE` apply as well.",
    ),
    Variable(INTERVAL, _SERVICES, "Milliseconds between two pushes of metrics; else 60000."),
    Variable(PROTOCOL, _SERVICES, "`http/protobuf`; HOSS speaks no OTLP over gRPC."),
    Variable(
        CACHE_VARIABLE,
        "`make e2e`, `hoss bench guard` and `kubernetes`",
        "Where the control plane they build is kept; else `~/.cache/hoss`.",
    ),
    Variable(
        ASSETS_VARIABLE,
        "the same",
        "A directory with kube-apiserver and etcd, as envtest has it: nothing is built.",
    ),
)

ANNOTATIONS = (
    Name(
        MIN_AVAILABLE_ANNOTATION,
        "annotation of a Job, Deployment, ReplicaSet or StatefulSet",
        "At least so many of its pods are bound at once, or none.",
    ),
    Name(
        DURING_EXECUTION,
        "annotation of a pod or its template",
        "`report` or `evict`: what becomes of a bound pod whose node stops matching its required node "
        "affinity.",
    ),
    Name(
        MOVABLE_ANNOTATION,
        "annotation of a pod or its template",
        "Whether `hoss rebalance plan` may move the pod: `false`, or `true` also for bare pods and gangs.",
    ),
    Name(GROUP_ANNOTATIONS[0], "annotation of a pod", "The Volcano PodGroup whose minimum it counts to."),
    Name(GROUP_ANNOTATIONS[1], "annotation of a pod", "The same, where the other annotation is missing."),
    Name(
        GROUP_LABEL, "label of a pod", "The PodGroup (of the coscheduling plugin) whose minimum it counts to."
    ),
    Name(
        NOISY_LABEL,
        "label of a node",
        "`true`: its pods use far more than they requested; the plugin QuietNodes prefers other nodes.",
    ),
    Name(DEVICE_RESOURCE, "resource", "Whole accelerator cards of a node."),
    Name(
        DEVICE_SHARE_RESOURCE,
        "resource of a pod",
        "Thousandths of one card; less than 1,000 shares a card with others.",
    ),
    Name(
        STRATEGY_LABEL,
        "label of a worker",
        "The name of a profile: what the worker scores by, where its document names none.",
    ),
    Name(
        "weight",
        "label of a worker",
        "Its weight in WeightedRoundRobin, unless the policy's `weightLabel` names another label.",
    ),
    Name(
        "hoss.dev/binding-guard",
        "label of a namespace",
        "`off`: the guard is not asked about bindings there.",
    ),
    Name(
        "hoss.dev/clients",
        "label of a namespace",
        "`on`: where the overlay `service-accounts` is, pods there may call dispatchers and resolvers.",
    ),
    Name(
        "hoss.dev/refused-by",
        "annotation of an Event FailedScheduling, written by HOSS",
        "The plugins behind the refusal, for programs.",
    ),
    Name(
        "hoss.dev/hosts",
        "annotation of the guard's Secret, written by HOSS",
        "The names its certificate is for.",
    ),
    Name(
        CARD_MODEL_LABEL,
        "label of a simulated node, written by HOSS",
        "The model of its cards, from the openb trace.",
    ),
    Name(
        PARTITION,
        "label of a simulated node, written by HOSS",
        "Which part it belongs to, where `hoss bench compare` gives each scheduler its own.",
    ),
)
