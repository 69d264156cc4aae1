"""The dashboard's HTTP interface, on a platform of real processes."""

import asyncio
import json
import re
from collections.abc import Iterator

import aiohttp
import pytest
from e2e.cluster import Cluster
from e2e.loads import prepare, submit
from fork_server import FORK_SERVER
from waiting import DEADLINE_SECONDS, until

from hossctl.cli import run_async
from hossctl.endpoints import clients_of

TOKEN = "a-token-of-some-length"
NODES = 20
RIGHT = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    (directory / "token").write_text(TOKEN)
    with Cluster(directory) as cluster:
        cluster.start_dashboard("--token-file", str(directory / "token"))
        cluster.start_worker("w1")

        async def fill() -> None:
            async with clients_of(cluster.endpoints) as clients:
                await prepare(clients, workers=1, nodes=NODES)
                await submit(clients, jobs=1, replicas=30, name="web")
                await submit(clients, jobs=1, replicas=1, name="giant", cpu_milli=1_000_000)
                await clients.dispatcher.get_pod("default", "web-0-0")

        run_async(fill())
        yield cluster


@pytest.fixture
async def http(cluster: Cluster):
    url = cluster.dashboard()
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS)) as session:
        yield session


async def _looks(http, *, until):
    """The first look that satisfies `until`, with all that was told before it put together."""
    sections, told = {}, []
    async with http.get("/api/stream") as response:
        assert response.content_type == "text/event-stream"
        async for line in response.content:
            if line.startswith(b"data: "):
                message = json.loads(line[6:])
                if "at" not in message:  # a word while the first look is being taken
                    continue
                told.append(message)
                sections |= message.get("sections", {})
                if until(sections):
                    return sections, told
    raise AssertionError("the stream ended")


def _settled(sections) -> bool:
    """All that can be placed is, and it is known why the rest cannot."""
    reasons = [group["reason"] for group in sections.get("pending", ())]
    return sections.get("queues", {}).get("BOUND") == 30 and reasons == ["Insufficient cpu"]


async def test_looks_tell_of_pods_workers_nodes_and_why_pods_wait(http):
    sections, told = await _looks(http, until=_settled)
    assert [(worker["name"], worker["state"]) for worker in sections["workers"]] == [("w1", "Ready")]
    assert [(group["reason"], group["pods"]) for group in sections["pending"]] == [("Insufficient cpu", 1)]
    assert len(told[0]["nodes"]["names"]) == NODES
    cpu = next(resource for resource in sections["capacity"] if resource["name"] == "cpu")
    assert (cpu["allocatable"], cpu["requested"]) == (NODES * 64_000, 30 * 100)


async def test_a_second_look_tells_only_what_has_changed(http):
    await _looks(http, until=_settled)
    async with http.get("/api/stream") as response:
        first, second = [look async for look in _first(response.content, 2)]
    assert first["whole"]
    assert {"pending", "queues", "conflicts", "platform"} <= first["sections"].keys()
    assert not second["whole"]
    assert not {"pending", "platform"} & second.get("sections", {}).keys()
    assert all(first["sections"][name] != value for name, value in second.get("sections", {}).items())
    assert "nodes" not in second


async def _first(content, count):
    async for line in content:
        if line.startswith(b'data: {"at"'):
            yield json.loads(line[6:])
            count -= 1
            if not count:
                return


async def test_a_pods_story_leads_from_its_submission_to_its_node(http):
    await _looks(http, until=_settled)
    async with http.get("/api/pods", params={"name": "web-0-7"}) as response:
        (story,) = (await response.json())["stories"]
    assert [(step["name"], step["state"]) for step in story["steps"]] == [
        ("Submitted", "done"), ("Queue", "done"), ("Worker", "done"), ("Node", "done"),
    ]  # fmt: skip
    assert story["steps"][2]["text"].startswith("w1")
    assert story["steps"][3]["text"].startswith("node-")
    assert story["steps"][0]["at"] <= story["steps"][3]["at"]


async def test_a_pod_that_waits_stands_in_its_queue_with_the_reason(http):
    await _looks(http, until=_settled)
    async with http.get("/api/pods", params={"name": "default/giant-0-0"}) as response:
        (story,) = (await response.json())["stories"]
    assert [step["state"] for step in story["steps"]] == ["done", "now", "ahead", "ahead"]
    assert "Insufficient cpu" in story["reason"]


async def test_a_name_that_only_begins_so_suggests(http):
    async with http.get("/api/pods", params={"name": "we"}) as response:
        assert await response.json() == {"stories": [], "suggestions": ["default/web-0-0"]}


async def _json(http, path, **query):
    async with http.get(path, params=query) as response:
        assert response.status == 200
        return await response.json()


async def test_lists_have_filters_and_pages(http):
    await _looks(http, until=_settled)
    jobs = (await _json(http, "/api/lists/jobs"))["rows"]
    assert [(job["name"], job["bound"], job["unschedulable"]) for job in jobs] == [
        ("web-0", 30, 0),
        ("giant-0", 0, 1),
    ]
    assert [job["name"] for job in (await _json(http, "/api/lists/jobs", name="gi"))["rows"]] == ["giant-0"]
    waiting = (await _json(http, "/api/lists/pods", phase="Unschedulable"))["rows"]
    assert [(pod["name"], pod["requests"]["cpu"]) for pod in waiting] == [("giant-0-0", "1000")]
    named = (await _json(http, "/api/lists/pods", name="web-0-3"))["rows"]
    assert [pod["name"] for pod in named] == ["web-0-3"]
    on_node = (await _json(http, "/api/lists/pods", node=named[0]["node"]))["rows"]
    assert "web-0-3" in [pod["name"] for pod in on_node]
    nodes = await _json(http, "/api/lists/nodes", name="000", sort="full")
    assert (nodes["total"], nodes["next"]) == (10, "")
    shares = [max(resource["share"] for resource in node["resources"]) for node in nodes["rows"]]
    assert shares == sorted(shares, reverse=True)
    (tenant,) = (await _json(http, "/api/lists/tenants"))["rows"]
    assert (tenant["name"], tenant["bound"]) == ("default", 30)


async def test_a_job_and_a_worker_have_pages_with_what_happened(http):
    await _looks(http, until=_settled)
    job = await _json(http, "/api/jobs/default/web-0")
    assert (job["replicas"], job["bound"]) == (30, 30)
    assert {step["pods"] for step in job["steps"] if step["phase"] == "Bound"} == {30}
    assert "bound" in {step["text"] for step in job["steps"]}
    worker = await _json(http, "/api/workers/w1")
    assert (worker["state"], worker["bound"]) == ("Ready", 30)
    assert worker["steps"][0]["state"] == "Ready"
    assert worker["points"][0][0] <= worker["points"][-1][0]


async def test_history_is_kept_without_viewers(http):
    """The pods were bound before anybody looked."""
    timeline = await _json(http, "/api/timeline", seconds="3600")
    bound = timeline["columns"].index("bound")
    assert timeline["workers"] == ["w1"]
    assert sum(row[bound] for row in timeline["rows"]) >= 30
    assert not (await _json(http, "/api/timeline", seconds="3600", worker="w9"))["rows"]
    for odd in ("nan", "-1", "inf"):
        assert (await _json(http, "/api/timeline", seconds=odd))["rows"]
    points = (await _json(http, "/api/history"))["points"]
    assert points[0][0] < points[-1][0]
    (policy,) = (await _json(http, "/api/policies"))["policies"]
    assert policy["source"] == "default"
    assert "events" in await _json(http, "/api/events")


async def test_fragmentation_has_the_figures_of_the_command(http):
    async def measured():
        page = await _json(http, "/api/fragmentation", resource="memory")
        return page if page["at"] and page["waiting"] else None

    page = await until(measured, "the first measure")
    (pool,) = page["pools"]
    assert pool["nodes"] > pool["emptiable"] > 0
    assert [row["resource"] for row in pool["resources"]][:2] == ["cpu", "memory"]
    assert page["resource"] == "memory"
    at, allocatable, free, usable, emptiable = page["points"][-1]
    assert at == page["at"]
    assert allocatable > free >= usable > 0
    assert emptiable == pool["emptiable"]
    assert page["waiting"][0]["name"] == "default/giant-0"
    assert page["waiting"][0]["fitting"] == 0


@pytest.mark.parametrize(
    "path", ["/jobs", "/fragmentation", "/nodes/node-0001", "/workers/w1", "/jobs/default/web-0"]
)
async def test_the_address_of_a_page_is_that_of_the_document(http, path):
    async with http.get(path) as response:
        assert response.content_type == "text/html"


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/api/lists/pods?phase=lost", 400, "phase: 'LOST' is no phase"),
        (
            "/api/lists/nodes?state=lost",
            400,
            "state: 'lost' is none of cordoned, quarantined, shrunk, open",
        ),
        ("/api/lists/nodes?page=x", 400, "page: is no number"),
        ("/api/lists/secrets", 404, "there is no list 'secrets'"),
        ("/api/jobs/default/none", 404, "there is no job 'default/none'"),
        ("/api/workers/w9", 404, "there is no worker 'w9'"),
        ("/api/timeline?seconds=x", 400, "seconds: is no number"),
        (f"/api/fragmentation?label={'x' * 318}", 400, "label: is longer than 317 characters"),
        ("/api/pods", 400, "name: is empty; give a pod's name, or namespace/name"),
        ("/api/nodes/nowhere", 404, "there is no node 'nowhere'"),
        ("/nothing", 404, "404: Not Found"),
        ("/static/../server.py", 404, "404: Not Found"),
        ("/static/%2e%2e/server.py", 404, None),
    ],
)
async def test_what_is_asked_wrong_is_answered_with_a_sentence(http, path, status, error):
    async with http.get(path) as response:
        assert response.status == status
        assert error is None or (await response.json())["error"] == error


async def test_a_browser_is_shown_a_page_where_there_is_none_and_a_program_an_error(http):
    for path, shown in (("/nothing", "text/html"), ("/api/nothing", "application/json")):
        async with http.get(path, headers={"Accept": "text/html,*/*;q=0.8"}) as response:
            assert (response.status, response.content_type) == (404, shown)
            assert response.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/stream", "/api/nodes/nowhere", "/api/access"])
async def test_every_answer_forbids_scripts_of_others_and_frames(http, path):
    async with http.get(path) as response:
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self'; ")
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong-token-of-the-same"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \u00fc"},
        {"Cookie": f"token={TOKEN}"},
        {"Authorization": "Bearer "},
    ],
)
async def test_an_action_without_the_token_is_refused_and_changes_nothing(http, headers):
    for path, body in (
        ("/api/workers/w1", {"state": "Draining"}),
        ("/api/nodes/node-0000", {"unschedulable": True}),
    ):
        async with http.post(path, json=body, headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
    sections, _ = await _looks(http, until=lambda s: "workers" in s)
    assert sections["workers"][0]["state"] == "Ready"


async def test_the_token_in_the_address_is_none(http):
    async with http.post(f"/api/workers/w1?token={TOKEN}", json={"state": "Draining"}) as response:
        assert response.status == 401


async def test_who_has_the_token_cordons_a_worker_and_opens_it_again(http):
    for state in ("Cordoned", "Ready"):
        async with http.post("/api/workers/w1", json={"state": state}, headers=RIGHT) as response:
            assert await response.json() == {"name": "w1", "state": state}


async def test_who_has_the_token_cordons_a_node_and_opens_it_again(http):
    for closed in (True, False):
        async with http.post(
            "/api/nodes/node-0003", json={"unschedulable": closed}, headers=RIGHT
        ) as response:
            assert await response.json() == {"name": "node-0003", "unschedulable": closed}
        async with http.get("/api/stream") as response:
            async for _ in _first(response.content, 100):
                async with http.get("/api/nodes/node-0003") as answer:
                    if shown := (await answer.json())["cordoned"] is closed:
                        break
        assert shown


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/api/workers/w1", '{"state": "Gone"}', 400, "state: 'Gone' is none of Ready, Cordoned, Draining"),
        ("/api/workers/w1", '{"state": 1}', 400, "state: is missing, or no str"),
        ("/api/workers/w1", "state=Ready", 400, "body: is no JSON"),
        ("/api/workers/w9", '{"state": "Ready"}', 404, "there is no worker 'w9'"),
        ("/api/nodes/nowhere", '{"unschedulable": true}', 404, "nowhere"),
        ("/api/nodes/node-0000", "[]", 400, "unschedulable: is missing, or no bool"),
        ("/api/workers/w1", " " * 11_000, 413, "the body is longer than 10000 bytes"),
    ],
)
async def test_actions_that_make_no_sense_say_why(http, path, body, status, error):
    async with http.post(path, data=body, headers=RIGHT) as response:
        assert response.status == status
        assert error in (await response.json())["error"]


async def test_hoss_up_prints_links_that_log_in_once_and_status_the_addresses(hoss):
    started = await asyncio.to_thread(hoss, "up", "--nodes", "10", "--workers", "1", "--dispatchers", "2")
    links = re.findall(
        r"^dashboard: (http://127\.0\.0\.1:\d+/)#login=(\S+)$", started.stdout + started.stderr, re.MULTILINE
    )
    status = await asyncio.to_thread(hoss.json, "status")
    assert len(links) == 1
    assert status["local"]["dashboards"] == [url for url, _ in links]
    again = await asyncio.to_thread(hoss.json, "dashboard")
    cookies = aiohttp.CookieJar(unsafe=True)  # which takes those of an address, as browsers do
    async with aiohttp.ClientSession(links[0][0], cookie_jar=cookies) as session:
        async with session.get("/") as page:
            assert page.status == 200
            assert "<title>HOSS</title>" in await page.text()
        for token in (links[0][1], again["dashboards"][0].partition("#login=")[2]):
            statuses = []
            for _ in range(2):
                async with session.post("/api/login", json={"token": token}) as answer:
                    statuses.append(answer.status)
            assert statuses == [200, 401]


def test_hoss_up_without_a_dashboard_and_with_a_port_that_is_taken(hoss, cluster):
    taken = cluster.address("resolver")
    assert "cannot listen there: the port is in use" in hoss("up", "--dashboard-listen", taken, code=1).stderr
    hoss("up", "--nodes", "10", "--workers", "1", "--dashboard-listen", "")
    assert hoss.json("status")["local"]["dashboards"] == []


def _refused(*flags: str) -> str:
    arguments = ["dashboard", "--dispatcher", "127.0.0.1:1", "--resolver", "127.0.0.1:1", *flags]
    done = FORK_SERVER.run("hossctl", arguments, timeout=DEADLINE_SECONDS)
    assert done.returncode
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_port_in_use_is_one_sentence_with_what_to_do(cluster):
    taken = cluster.address("resolver")
    assert f"dashboard listen address {taken}: cannot listen there: the port is in use" in _refused(
        "--listen", taken
    )


def test_an_address_that_is_none_is_one_sentence_with_an_example():
    assert "nonsense: is no address; give host:port, as in 127.0.0.1:7180" in _refused("--listen", "nonsense")


def test_a_token_file_that_is_not_there_is_one_sentence(tmp_path):
    assert "cannot be read" in _refused("--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "none"))
