"""deploy/ agrees with the code: what the compose file starts has the flags, files, ports and labels that it
names."""

import json
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
import typer
import yaml
from fork_server import FORK_SERVER
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from waiting import DEADLINE_SECONDS

from dispatcher.core.policy.checks import document_warnings
from dispatcher.policy.documents import parse_policy
from hoss.healthcheck import main as healthcheck
from hoss.security.transport import FILES, server_name
from hossctl.commands.platform import nodes, status
from hossctl.load.nodes import read_nodes_file
from hossctl.local.deployment import AUTHORITY, REDIS, Deployment
from scheduler_worker.config import parse_labels
from tools.sbom import bill_of_materials

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
UNDER_SENTINEL = yaml.safe_load((DEPLOY / "docker-compose.sentinel.yml").read_text())["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "hoss:local"}
SERVERS = {name: service for name, service in OURS.items() if service["command"][0] != "hossctl"}
WORKERS = {name: service for name, service in OURS.items() if service["command"][0] == "scheduler_worker"}


def flags(service):
    """A service's flags by name; those that may be repeated as the last one given."""
    given = (flag.removeprefix("--").partition("=") for flag in service["command"][1:])
    return {name: value for name, _, value in given}  # "" for a flag without a value


def test_the_cluster_is_redis_two_resolvers_a_dispatcher_four_pools_of_workers_a_dashboard_and_nodes():
    default = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert default == {"credentials", "redis", "resolver", "dispatcher", "dashboard", "nodes", *WORKERS}
    assert SERVICES["resolver"]["scale"] == 2
    assert len({flags(worker)["label"] for worker in WORKERS.values()}) == len(WORKERS) == 4


@pytest.mark.parametrize("module", ["resolver", "dispatcher", "scheduler_worker"])
def test_every_service_has_the_flags_that_it_is_started_with(module):
    told = FORK_SERVER.run(module, ["--help"], timeout=DEADLINE_SECONDS).stdout
    for service in SERVERS.values():
        if service["command"][0] == module:
            assert flags(service)["listen"].startswith("0.0.0.0:")
            assert {f"--{flag}" for flag in flags(service)} <= set(re.findall(r"--[a-z-]+", told))


def test_the_nodes_command_has_the_flags_that_it_is_started_with_and_the_file_holds_1000_nodes():
    module, *arguments = SERVICES["nodes"]["command"]
    assert module == "hossctl"
    assert arguments[:2] == ["nodes", "add"]
    add = typer.main.get_command(nodes.group).commands["add"]
    given = add.make_context("add", arguments[2:]).params
    assert given["resolver"] == "resolver:7080"
    assert len(read_nodes_file(DEPLOY / given["file"].name)) == 1000


def test_the_dashboard_has_the_flags_that_it_is_started_with_and_calls_services_where_they_listen():
    module, command, *arguments = SERVICES["dashboard"]["command"]
    assert (module, command) == ("hossctl", "dashboard")
    dashboard = typer.main.get_command(status.app).commands["dashboard"]
    given = dashboard.make_context("dashboard", arguments).params
    for service in ("dispatcher", "resolver"):
        port = flags(SERVICES[service])["listen"].rpartition(":")[2]
        assert given[service] == f"{service}:{port}"
    assert f"dashboard-credentials:{given['tls_dir']}:ro" in SERVICES["dashboard"]["volumes"]


@pytest.mark.parametrize("name", SERVERS)
def test_every_service_is_asked_for_its_health_where_it_listens(name):
    test = SERVERS[name]["healthcheck"]["test"]
    assert test[:4] == ["CMD", "python", "-m", healthcheck.__module__]
    assert test[4].rpartition(":")[2] == flags(SERVERS[name])["listen"].rpartition(":")[2]


def test_addresses_name_services_and_the_ports_they_listen_on():
    ports = {name: flags(service)["listen"].rpartition(":")[2] for name, service in SERVERS.items()}
    for service in SERVERS.values():
        for flag in {"dispatcher", "resolver"} & set(flags(service)):
            host, _, port = flags(service)[flag].rpartition(":")
            assert ports[host] == port
    for name, service in OURS.items():
        for published in service.get("ports", ()):
            assert published.rpartition(":")[2] == flags(service)["listen"].rpartition(":")[2], name


@pytest.mark.parametrize("name", SERVICES)
def test_containers_have_few_rights_and_publish_to_this_machine_alone(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(published.startswith("127.0.0.1:") for published in service.get("ports", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_any_service_can_be_scaled_by_its_name(name):
    assert "container_name" not in SERVICES[name]
    assert "hostname" not in SERVICES[name]
    if name in WORKERS:
        assert "name" not in flags(SERVICES[name])  # the container's name is the worker's
        assert "ports" not in SERVICES[name]


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_waits_for_can_come_to_pass(name):
    for other, condition in SERVICES[name].get("depends_on", {}).items():
        if condition["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        else:
            assert condition["condition"] == "service_completed_successfully"
            assert SERVICES[other]["restart"] == "no"


@pytest.mark.parametrize("name", SERVICES)
def test_mounted_files_are_there(name):
    for volume in SERVICES[name].get("volumes", ()):
        source, target = volume.split(":")[:2]
        if source.startswith("."):
            assert (DEPLOY / source).exists()
            assert volume.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]
        for flag in SERVICES[name].get("command", ()):
            if f"={target}" in flag and "." in target and source.startswith("."):
                assert (DEPLOY / Path(target).name).exists() or (DEPLOY / source).is_file()


def test_under_sentinel_the_services_differ_in_their_redis_alone():
    for name in ("resolver", "dispatcher"):
        ours, theirs = flags(UNDER_SENTINEL[name]), flags(SERVICES[name])
        form, addresses = ours.pop("redis-url").split("://")
        assert (form, addresses.partition(":")[0]) == ("redis+sentinel", "sentinel")
        assert theirs.pop("redis-url").startswith("redis://")
        assert ours == theirs


@pytest.mark.parametrize("name", ["redis", "redis-replica", "sentinel"])
def test_every_redis_under_sentinel_is_as_closed_as_the_single_one(name):
    service = {**(SERVICES["redis"] if name == "redis" else {}), **UNDER_SENTINEL[name]}
    for field in ("image", "user", "read_only", "cap_drop", "security_opt", "restart"):
        assert service[field] == SERVICES["redis"][field], field
    assert "ports" not in service
    assert "./redis:/etc/hoss:ro" in service["volumes"]
    shell, script, configuration = service["command"]
    assert shell == "sh"
    text = (DEPLOY / "redis" / configuration).read_text()
    assert (DEPLOY / script.replace("/etc/hoss", "redis")).is_file()
    named = re.findall(r"^(?:sentinel monitor hoss|replicaof|replica-announce-ip) (\S+)", text, re.MULTILINE)
    assert set(named) <= {"redis", "redis-replica"}
    assert len(named) == {"redis": 1, "redis-replica": 2, "sentinel": 1}[name]


def test_images_are_pinned_to_a_release():
    images = [service["image"] for name, service in SERVICES.items() if name not in OURS]
    base = re.search(r"^ARG PYTHON=(.+)$", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    for tag in (*(image.rpartition(":")[2] for image in images), base[1]):
        assert re.match(r"v?\d+\.\d+\.\d+", tag)


def test_every_rule_of_the_policy_finds_a_pool_of_workers_and_every_pool_has_a_rule():
    policy_text = (DEPLOY / "policy.yaml").read_text()
    assert document_warnings(parse_policy(policy_text)) == []
    pools = {name: parse_labels([flags(worker)["label"]]) for name, worker in WORKERS.items()}
    chosen = set()
    for rule in yaml.safe_load(policy_text)["rules"]:
        wanted = rule["workers"]["matchLabels"].items()
        found = {name for name, labels in pools.items() if wanted <= labels.items()}
        assert found, rule["name"]
        chosen |= found
    assert chosen == set(WORKERS)


def test_the_lock_has_a_version_and_hashes_of_everything_that_the_image_needs():
    entries = (DEPLOY / "requirements.lock").read_text().replace("\\\n", "").splitlines()
    locked = {}
    for line in filter(lambda line: line and not line.startswith("#"), entries):
        named, _, hashes = line.partition(" --hash=")
        assert hashes.startswith("sha256:"), line
        found = Requirement(named.strip())
        locked[canonicalize_name(found.name)] = next(iter(found.specifier)).version
    needed = [Requirement(text) for text in requires("hoss") or ()]
    of_the_image = [one for one in needed if not one.marker or one.marker.evaluate({"extra": "kubernetes"})]
    assert len(of_the_image) > 15
    for one in of_the_image:
        assert one.specifier.contains(locked[canonicalize_name(one.name)]), one
    # It is installed without looking for what else is needed, so what these need is there as well.
    seen = set()
    while of_the_image:
        one = of_the_image.pop()
        name = canonicalize_name(one.name)
        assert name in locked, one
        if name not in seen:
            seen.add(name)
            inner = (Requirement(text) for text in requires(name) or ())
            extras = [{"extra": extra} for extra in (*one.extras, "")]
            of_the_image += [r for r in inner if not r.marker or any(map(r.marker.evaluate, extras))]
    assert len(seen) > 20
    assert "--require-hashes --no-deps -r requirements.lock" in (DEPLOY / "Dockerfile").read_text()


def test_the_bill_of_materials_names_what_an_environment_has(tmp_path):
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name, version, licence in (("hoss", "1.2", "MIT"), ("Some_Package", "3.4.5", "")):
        (packages / f"{name}-{version}.dist-info").mkdir(parents=True)
        text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
        text += f"License-Expression: {licence}\n" if licence else ""
        (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(text)
    bill = bill_of_materials(tmp_path)
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", "1.2")
    assert [part["purl"] for part in bill["components"]] == [
        "pkg:pypi/hoss@1.2",
        "pkg:pypi/some-package@3.4.5",
    ]
    assert bill["components"][0]["licenses"] == [{"expression": "MIT"}]
    with pytest.raises(FileNotFoundError):
        bill_of_materials(tmp_path / "lib")


def test_the_image_runs_as_nobody_in_particular():
    final = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")[-1]
    assert re.search(r"^USER [1-9]\d*$", final, flags=re.MULTILINE)


KIND_OF_MODULE = {
    "dispatcher": "dispatcher",
    "resolver": "resolver",
    "scheduler_worker": "worker",
    "hossctl": "dashboard",
}


def test_prometheus_looks_at_every_service_over_mutual_tls_by_the_name_of_its_kind():
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    seen = {}
    for scraped in config["scrape_configs"]:
        (found,) = scraped["dns_sd_configs"]
        assert scraped["scheme"] == "https"
        for name in found["names"]:
            kind = KIND_OF_MODULE[SERVICES[name]["command"][0]]
            assert flags(SERVICES[name])["metrics-listen"] == f"0.0.0.0:{found['port']}"
            assert scraped["tls_config"]["server_name"] == server_name(kind)
            seen[name] = scraped["tls_config"]
    assert seen.keys() == {*SERVERS, "dashboard"}
    assert "prometheus-credentials:/var/lib/hoss/prometheus:ro" in SERVICES["prometheus"]["volumes"]
    for used in seen.values():
        files = {used["ca_file"], used["cert_file"], used["key_file"]}
        assert files == {f"/var/lib/hoss/prometheus/{name}" for name in FILES}


def test_every_folder_of_credentials_is_in_the_image_so_that_its_volume_has_the_right_owner():
    made = re.search(r"cd /var/lib(.+?)\nCOPY", (DEPLOY / "Dockerfile").read_text(), flags=re.DOTALL)[1]
    mounted = {volume.split(":")[1] for volume in SERVICES["credentials"]["volumes"]}
    assert {f"/var/lib/{folder}" for folder in re.findall(r"\bhoss/\w+", made)} == mounted
    folders = {path.rpartition("/")[2] for path in mounted}
    assert folders == {AUTHORITY, REDIS, *Deployment().identities()}


def test_who_reads_credentials_is_their_user():
    (user,) = re.findall(r"^USER (\d+)$", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    for name, service in SERVICES.items():
        if any("-credentials:" in volume for volume in service.get("volumes", ())) and name not in OURS:
            assert service["user"].split(":")[0] == user


def test_grafana_looks_at_prometheus():
    provisioning = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/hoss.yaml").read_text())["providers"]
    assert f"./grafana:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]


def test_the_collector_takes_otlp_where_it_is_published():
    config = yaml.safe_load((DEPLOY / "otel/collector.yaml").read_text())
    endpoint = config["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    (published,) = SERVICES["otel-collector"]["ports"]
    assert endpoint.rpartition(":")[2] == published.rpartition(":")[2]
    used = json.dumps(config["service"]["pipelines"])
    assert all(name in used for name in config["exporters"])
