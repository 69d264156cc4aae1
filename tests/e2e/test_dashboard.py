"""The dashboard in a browser: through a load, a worker's death, a dispatcher that goes and comes back, and
without a mouse."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from e2e import accessibility
from e2e.cluster import Cluster
from e2e.dashboard_page import PHONE, Page, browser
from e2e.loads import prepare, submit
from machine import no_browser
from waiting import until

from hoss.client.dispatcher import submission
from hoss.host import THIS_HOST
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity, Role
from hossctl.cli import run_async
from hossctl.dashboard.view_model import NO_DISPATCHER, SLOW_DISPATCHER
from hossctl.endpoints import clients_of, of_state
from hossctl.local import platform, platform_state

TOKEN = "a-token-of-some-length"
NODES = 300
WORKER = "a-worker-with-a-rather-long-name"

pytestmark = pytest.mark.skipif(bool(no_browser()), reason=no_browser())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Empty, for a test alone."""
    with shown(tmp_path) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A worker, and NODES nodes, for one test after the other."""
    with shown(tmp_path_factory.mktemp("shared")) as cluster:
        cluster.start_worker(WORKER, "tier=batch")
        fill(cluster, workers=1)
        yield cluster


@contextlib.contextmanager
def shown(directory: Path) -> Iterator[Cluster]:
    (directory / "token").write_text(TOKEN)
    with Cluster(directory) as cluster:
        cluster.start_dashboard("--token-file", str(directory / "token"))
        yield cluster


def fill(cluster: Cluster, *, workers: int, nodes: int = NODES) -> None:
    async def run() -> None:
        async with clients_of(cluster.endpoints) as clients:
            await prepare(clients, workers=workers, nodes=nodes)

    run_async(run())


def load(
    cluster: Cluster, *, jobs: int = 1, replicas: int = 100, name: str = "job", cpu_milli: int = 100
) -> None:
    async def run() -> None:
        async with clients_of(cluster.endpoints) as clients:
            await submit(clients, jobs=jobs, replicas=replicas, name=name, cpu_milli=cpu_milli)

    run_async(run())


# Keeps what live regions say, in order; but for the state of the connection, which a busy machine may lose,
# and for what could not be looked up meanwhile.
SPEECH = """
window.spoken = [];
const region = (node) => (node instanceof Element ? node : node.parentElement)
  ?.closest('[role=status], [role=alert], [role=log], [aria-live]');
new MutationObserver((changes) => {
  for (const changed of new Set(changes.map(({ target }) => region(target)))) {
    const text = changed?.textContent.trim();
    if (text && !['link', 'notice'].includes(changed.id) && !text.startsWith('This could not'))
      window.spoken.push(text);
  }
}).observe(document.body, { subtree: true, childList: true, characterData: true });
"""


@contextlib.contextmanager
def cordoned(cluster: Cluster, node: str) -> Iterator[None]:
    async def cordon(unschedulable: bool) -> None:
        async with clients_of(cluster.endpoints) as clients:
            await clients.resolver.cordon_node(node, unschedulable)

    run_async(cordon(True))
    try:
        yield
    finally:
        run_async(cordon(False))


def spoken(page: Page) -> list[str]:
    return page.script("return window.spoken")


def show(page: Page, cluster: Cluster) -> None:
    page.open(cluster.dashboard())
    page.until(lambda: page.link() == "live", "the first look")


def test_a_load_a_workers_death_and_a_reconnect(page, cluster):
    show(page, cluster)
    assert "No nodes yet" in page.text("#nodes")
    assert "No worker has registered" in page.text(".workers")
    assert "No pod waits." in page.text(".side")
    assert "No conflict since" in page.text(".matrix")

    for name in ("ada", "ben"):
        cluster.start_worker(name, "tier=batch")
    fill(cluster, workers=2)
    page.until(lambda: page.text("#nodes-count") == str(NODES), "the nodes")
    page.until(lambda: page.text("#f-workers") == "2 of 2", "both workers")
    load(cluster, jobs=4, replicas=1000)
    load(cluster, name="giant", replicas=3, cpu_milli=1_000_000)
    page.until(lambda: page.text("#f-bound") == "4,000", "the pods to be bound")
    page.until(lambda: "Insufficient cpu\n3" in page.text("#pending"), "why three pods wait")
    assert page.script("return document.querySelectorAll('#rate-chart path.line-0').length") == 1
    page.until(lambda: "%" in page.text("#f-cpu"), "what is requested")

    cluster.kill("ada")
    page.until(lambda: "Lost" in page.text("#workers"), "the worker to be shown as lost")
    assert page.text("#f-workers") == "1 of 2"
    assert page.text("#workers-count") == "2, 1 lost"

    cluster.kill("dispatcher")
    page.until(lambda: page.link() == "away", "the page to say that no dispatcher answers")
    assert page.text("#link") == "Reconnecting"
    page.until(lambda: "No dispatcher answers" in page.text("#notice"), "the page to say so")
    assert page.text("#f-bound") == "4,000"  # what was known stays to be read
    cluster.start_dispatcher()
    page.until(lambda: page.link() == "live", "the connection to come back")
    page.until(lambda: page.text("#f-bound") == "4,000", "the same pods")
    page.until(lambda: page.text("#f-workers").startswith("1 of"), "the worker that lives")
    assert not page.text("#notice")
    load(cluster, name="more", replicas=10)
    page.until(lambda: page.text("#f-bound") == "4,010", "news to come again")
    assert not page.errors()


def test_a_pods_way_is_found_by_name_and_from_why_pods_wait(page, shared):
    cluster = shared
    load(cluster, name="web", replicas=5)
    load(cluster, name="giant", replicas=1, cpu_milli=1_000_000)
    show(page, cluster)
    # A way is told as it is when it is asked for.
    page.until(lambda: page.text("#f-bound") == "5", "the pods to be bound")
    page.keys("/", "web-0-3", "\n")
    page.until(lambda: "default/web-0-3: bound" in page.text("#story"), "the pod's way")
    assert WORKER in page.text("#story")
    assert "node-" in page.text("#story")
    page.until(lambda: "Insufficient cpu" in page.text("#pending a"), "a pod that waits")
    page.press("#pending a")
    page.until(lambda: "default/giant-0-0" in page.text("#story"), "the example's way")
    assert "Insufficient cpu" in page.text("#story .why")
    page.press("#story button")
    assert not page.text("#story")
    page.script("document.querySelector('#find-name').value = ''")
    page.press("#find-name")
    page.script("document.querySelector('#find-name').focus()")
    page.keys("nobody", "\n")
    page.until(lambda: "No pod is called nobody" in page.text("#story"), "that there is none")


def test_nodes_are_told_by_keyboard_and_by_resource(page, shared):
    show(page, shared)
    page.until(lambda: page.text("#nodes-count"), "the nodes")
    page.script("document.querySelector('#heat').focus()")
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415 - there is one, or this test is skipped

    page.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.until(
        lambda: "node-0002" in page.text("#node-now") and "of 64" in page.text("#node-now"), "the third node"
    )
    page.keys(Keys.END)
    page.until(lambda: f"node-{NODES - 1:04d}" in page.text("#node-now"), "the last node")
    assert page.text("#resources").split() == ["CPU", "Memory", "Pods"]
    page.press("#resources button:nth-child(2)")
    assert (
        page.script("return document.querySelector('#resources [aria-pressed=true]').innerText") == "Memory"
    )


def visit(page: Page, cluster: Cluster, path: str) -> None:
    page.open(cluster.dashboard() + path)
    page.until(lambda: page.link() == "live", "the first look")


def test_lists_have_filters_in_the_address_and_lead_to_pages(page, shared):
    load(shared, name="listed", replicas=3)
    visit(page, shared, "jobs")
    page.until(lambda: "default/listed-0" in page.text("#page"), "the job")
    assert page.text("#pages [aria-current]") == "Jobs"
    page.script("document.querySelector('#page [name=name]').focus()")
    page.keys("list", "\n")
    page.until(lambda: page.text("#page tbody").count("default/") == 1, "that job alone")
    assert page.script("return location.search") == "?name=list"
    page.script("location.reload()")
    page.until(lambda: page.text("#page tbody").count("default/") == 1, "the same after a reload")
    page.press("#page tbody a")
    page.until(lambda: "Job default/listed-0" in page.text("#page"), "the job's page")
    page.until(lambda: "3 of 3" in page.text("#page"), "its pods to be bound")
    page.script("history.back()")
    page.until(lambda: page.text("#page tbody").count("default/") == 1, "the list again")
    visit(page, shared, "pods?job=listed-0&phase=Bound")
    page.until(lambda: page.text("#page tbody").count("default/listed-0-") == 3, "the job's pods")
    assert page.script("return document.querySelector('#page [name=phase]').value") == "Bound"
    page.press("#page td a[href^='/nodes/']")
    page.until(lambda: "default/listed-0-" in page.text("#page .part:last-child"), "the node with its pods")
    assert "of 64" in page.text("#page .facts")
    visit(page, shared, "nodes?name=node-000&sort=full")
    page.until(lambda: page.text("#page tbody").count("node-") == 10, "ten nodes")
    assert page.text("#page .count") == "10"
    visit(page, shared, "tenants")
    page.until(lambda: "default" in page.text("#page tbody"), "the tenant")
    assert not page.errors()


def test_an_address_of_nothing_is_told_with_a_way_back(page, shared):
    for path in ("nodes/%zz", "none/such"):
        visit(page, shared, path)
        page.until(lambda: "There is no such page" in page.text("#page"), "the page to say so")
    assert accessibility.faults(page) == []
    page.press("#page a[href='/']")
    page.until(lambda: page.text("#nodes-count"), "the overview")
    for kind, name in (("jobs", "default/none"), ("nodes", "none"), ("workers", "none")):
        visit(page, shared, f"{kind}/{name}")
        page.until(lambda kind=kind: f"there is no {kind[:-1]}" in page.text("#page"), "the page to say so")
        assert page.text(f"#page a[href='/{kind}']") == f"All {kind}"


def test_long_names_leave_room_for_what_else_is_in_a_list(page, shared):
    name = f"{'a-name-that-goes-on-' * 5}0"
    load(shared, name=name, replicas=2)
    for path in ("jobs", f"pods?job={name}-0", f"jobs/default/{name}-0"):
        visit(page, shared, path)
        page.until(lambda: f"{name}-0" in page.text("#page"), "the long name")
        hidden = "return [...document.querySelectorAll('.scroll')].map((e) => e.scrollWidth - e.clientWidth)"
        assert max(page.script(hidden)) == 0, path


def test_long_names_and_labels_of_a_worker_leave_room_for_its_state_and_figures(page, shared):
    name = "a-worker-whose-name-goes-on-and-on-and-on-and-on-and-on-to-say-what-it-does"
    shared.start_worker(
        name, "topology.kubernetes.io/zone=a-zone-with-a-name-that-is-nearly-as-long-as-it-may-be"
    )
    try:
        hidden = "const e = document.querySelector(arguments[0]).closest('.scroll'); return e.scrollWidth - e.clientWidth"
        for path, place in (("", "#workers"), ("workers", "#page .list")):
            visit(page, shared, path)
            page.until(lambda place=place: name in page.text(place), "the worker")
            assert page.script(hidden, place) == 0, path or "overview"
    finally:
        shared.kill(name)


def test_a_pod_of_a_list_leads_to_its_way_which_has_an_address(page, shared):
    load(shared, name="led", replicas=3)
    visit(page, shared, "jobs/default/led-0")
    page.until(lambda: "3 of 3" in page.text("#page"), "its pods to be bound")
    page.press("#page tbody a[href='/pods?namespace=default&name=led-0-1']")
    page.until(lambda: "default/led-0-1: bound" in page.text("#story"), "the pod's way")
    assert page.script("return location.pathname + location.search") == "/pods?namespace=default&name=led-0-1"
    page.until(lambda: page.text("#page tbody").count("default/led-0-") == 1, "that pod alone")
    page.script("location.reload()")
    page.until(lambda: "default/led-0-1: bound" in page.text("#story"), "the same after a reload")
    visit(page, shared, "jobs")
    assert not page.text("#story")
    assert not page.errors()


def test_a_worker_has_a_page_with_its_history_as_a_picture_and_as_a_table(page, shared):
    load(shared, name="worked", replicas=50)
    visit(page, shared, "workers?state=Ready")
    page.until(lambda: WORKER in page.text("#page tbody"), "the worker")
    page.press("#page tbody a")
    page.until(lambda: f"Worker {WORKER}" in page.text("#page"), "its page")
    assert "tier=batch" in page.text("#page .facts")
    assert "It lost no proposal" in page.text("#page")
    page.press("#page .numbers summary")
    page.until(lambda: "bound" in page.text("#page .numbers thead"), "the numbers")
    assert page.script("return document.querySelectorAll('#page .chart svg path').length") >= 1
    page.script(
        "const e = document.querySelector('#page .numbers'); e.dataset.old = 1; e.firstElementChild.focus()"
    )
    page.until(
        lambda: page.script("return !document.querySelector('#page .numbers[data-old]')"),
        "the page to be drawn anew, with the next point of the curve",
    )
    assert "bound" in page.text("#page .numbers thead")  # what was opened stays open,
    assert (
        page.script("return document.activeElement.innerText") == "As a table"
    )  # and the focus where it was
    assert not page.errors()


def test_the_timeline_tells_when_workers_had_which_batches(page, shared):
    load(shared, name="timed", replicas=200)
    visit(page, shared, "timeline?seconds=3600")
    page.until(lambda: WORKER in page.text("#page tbody"), "the worker's sums")
    bars = """
        const lanes = document.querySelector('.lanes'), wanted = getComputedStyle(document.body);
        const pixels = lanes.getContext('2d').getImageData(0, 0, lanes.width, lanes.height).data;
        return new Set([...Array(pixels.length / 4).keys()].map((i) => pixels.slice(4 * i, 4 * i + 4).join())).size;
    """
    assert page.script(bars) > 3  # lines, text and bars
    page.press("#page .tabs button:nth-child(3)")
    page.until(lambda: page.script("return location.search") == "?seconds=300", "the span in the address")
    assert page.text("#page .tabs [aria-pressed=true]") == "5 min"
    assert not page.errors()


def test_fragmentation_has_a_page_by_pool_with_its_course_as_curves_and_as_tables(page, shared):
    load(shared, name="whole", replicas=50)
    load(shared, name="huge", replicas=1, cpu_milli=1_000_000)
    visit(page, shared, "pods?job=huge-0&phase=Unschedulable")
    page.until(lambda: "default/huge-0" in page.text("#page tbody"), "a pod that waits")
    visit(page, shared, "fragmentation")
    page.until(lambda: "all, CPU" in page.text("#page tbody"), "the pool of all nodes")
    page.until(lambda: "default/huge-0" in page.text("#page .part:last-child"), "the job that waits")
    assert "that could be emptied" in page.text("#page")
    page.press("#page .room-tabs button:nth-child(2)")
    page.until(lambda: page.text("#page .room-tabs [aria-pressed=true]") == "Memory", "the curves of memory")
    assert page.script("return location.search") == "?resource=memory"
    page.press("#page .numbers summary")
    page.until(lambda: "usable" in page.text("#page .numbers thead"), "the numbers of the curves")
    page.script("const e = document.querySelector('#page [name=label]'); e.value = ''; e.focus()")
    page.keys("tier", "\n")
    page.until(lambda: "without the label, CPU" in page.text("#page tbody"), "the nodes without that label")
    assert page.script("return location.search") == "?label=tier&resource=memory"
    assert page.script("return document.querySelector('#page [name=label]').value") == "tier"
    assert not page.errors()


def test_events_and_policies_are_kept_whether_anybody_looks_or_not(page, cluster):
    cluster.start_worker("ada")
    fill(cluster, workers=1, nodes=5)
    show(page, cluster)
    page.until(lambda: page.text("#f-workers") == "1 of 1", "the worker")
    page.open("about:blank")
    cluster.kill("ada")

    async def lost() -> None:
        async with clients_of(cluster.endpoints) as clients:

            async def is_lost() -> bool:
                return {worker.state for worker in await clients.dispatcher.list_workers()} == {"Lost"}

            await until(is_lost, "the worker to be lost")
            yaml = (Path(__file__).parents[2] / "deploy/policy.yaml").read_text()
            await clients.dispatcher.set_policy(yaml)

    run_async(lost())
    visit(page, cluster, "events?kind=worker")
    page.until(lambda: "→ Lost" in page.text("#page tbody"), "that the worker was lost")
    visit(page, cluster, "policy")
    page.until(lambda: "in force" in page.text("#page details:nth-child(1)"), "the policy in force")
    page.until(lambda: "kind: SchedulingPolicy" in page.text("#page pre"), "its text")
    assert page.script("return document.querySelectorAll('#page details').length") == 2
    assert not page.errors()


def test_a_list_goes_on_by_itself_through_a_takeover(page, tmp_path):
    with Cluster(tmp_path, dispatchers=2, workers=["w1"]) as cluster:
        cluster.start_dashboard()
        fill(cluster, workers=1, nodes=10)
        load(cluster, name="early", replicas=2)
        visit(page, cluster, "jobs")
        page.until(lambda: "default/early-0" in page.text("#page"), "the job")
        page.until(lambda: ", term " in page.text("body"), "the dispatcher's term")
        term = int(page.text("body").split(", term ")[1].split(",")[0])
        cluster.kill("dispatcher")
        page.until(lambda: page.text("#link") == "Reconnecting", "the page to say that it waits")
        assert "default/early-0" in page.text("#page")
        page.until(lambda: page.link() == "live", "the standby to take over")
        load(cluster, name="late", replicas=2)
        page.until(lambda: "default/late-0" in page.text("#page"), "the job that came since")
        visit(page, cluster, "events?kind=dispatcher")
        page.until(
            lambda: f"leads, term {term + 1}" in page.text("#page tbody"), "the takeover among the events"
        )


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.thorough)])
def test_every_page_fits_a_phone_in_light_and_dark(page, shared, scheme):
    load(shared, name=f"fit-{scheme}", replicas=2)
    page.system_scheme(scheme)
    page.resize(PHONE)
    with contextlib.ExitStack() as after:
        after.callback(page.resize, (1440, 1120))
        for path, text in (
            ("jobs", f"fit-{scheme}"),
            (f"pods?job=fit-{scheme}-0", f"fit-{scheme}"),
            ("nodes", "node-0000"),
            ("workers", WORKER),
            ("tenants", "default"),
            ("timeline", "Timeline"),
            ("fragmentation", "all, CPU"),
            ("policy", "in force"),
            ("events", "Events"),
            (f"workers/{WORKER}", "tier=batch"),
            (f"workers/{WORKER}", "Profile\nspread"),
            ("nodes/node-0000", "of 64"),
            ("nodes/node-0000", "not noisy"),
            (f"jobs/default/fit-{scheme}-0", "2 of 2"),
        ):
            visit(page, shared, path)
            page.until(lambda text=text: text in page.text("#page"), f"{text} on {path}")
            assert page.script("return document.documentElement.scrollWidth") <= PHONE[0], path
            assert accessibility.faults(page) == [], path
    assert not page.errors()


def test_a_screen_reader_is_told_what_its_user_did_and_not_what_changes_by_itself(page, shared):
    """All live regions are watched while pods come and go, with a node, a list and a pod's way in view."""
    load(shared, name="quiet", replicas=2)
    show(page, shared)
    page.until(lambda: page.text("#nodes-count") == str(NODES), "the nodes")
    assert accessibility.faults(page) == []
    page.script(SPEECH)
    bound = page.text("#f-bound")
    page.script("document.querySelector('#heat').focus()")
    told = page.until(
        lambda: [text for text in spoken(page) if text.startswith("node-")], "the node to be told"
    )
    with cordoned(shared, told[0].split()[0]):
        page.until(lambda: "cordoned" in page.text("#node-now"), "the node's new state to be shown")
        page.script("document.querySelector('#find-name').focus()")
        page.keys("quiet-0-1", "\n")
        page.until(lambda: any("quiet-0-1: bound" in text for text in spoken(page)), "the pod to be told")
    load(shared, name="loud", replicas=50)
    page.until(lambda: page.text("#f-bound") != bound, "the figures to go on")
    page.script("document.querySelector('#pages [data-page=jobs]').click()")
    page.until(lambda: any(text.endswith(" jobs") for text in spoken(page)), "the list to be told")
    load(shared, name="louder", replicas=5)
    page.until(lambda: "louder-0" in page.text("#page tbody"), "the list to go on")
    said = [text for text in spoken(page) if ": queued" not in text and ": scheduling" not in text]
    assert [text.split()[-1] for text in said] == [told[0].split()[-1], "bound", "jobs"]


def test_actions_appear_with_the_token_alone(page, shared):
    show(page, shared)
    page.until(lambda: "Ready" in page.text("#workers"), "the worker")
    assert not page.text("#workers .act button")
    page.press("#unlock")
    page.keys("not-the-token", "\n")
    page.until(lambda: "this is not the token" in page.text("#token-form"), "the wrong token to be refused")
    page.script("document.querySelector('#token').value = ''; document.querySelector('#token').focus()")
    page.keys(TOKEN, "\n")
    page.until(lambda: page.text("#unlock") == "Log out", "the right token to be taken")
    page.press("#workers .act button")
    page.until(lambda: "Cordoned" in page.text("#workers"), "the worker to be cordoned")
    page.press("#workers .act button")
    page.until(lambda: "Ready" in page.text("#workers"), "the worker to be ready again")
    page.press("#unlock")
    page.until(lambda: not page.text("#workers .act button"), "the actions to be gone")


def test_the_theme_follows_the_system_until_one_is_chosen(page, shared):
    def background() -> str:
        return page.script("return getComputedStyle(document.body).backgroundColor")

    page.system_scheme("light")
    show(page, shared)
    light = background()
    page.system_scheme("dark")
    dark = page.until(lambda: background() != light and background(), "the dark theme")
    page.press("#theme")
    assert background() == light
    page.open(shared.dashboard())
    assert background() == light  # remembered
    page.press("#theme")
    assert background() == dark
    page.script("localStorage.clear()")


def test_a_phone_shows_all_without_scrolling_sideways(page, shared):
    load(shared, name="vast", replicas=1, cpu_milli=1_000_000)
    page.resize(PHONE)
    with contextlib.ExitStack() as after:
        after.callback(page.resize, (1440, 1120))
        show(page, shared)
        page.until(lambda: page.text("#nodes-count") == str(NODES), "the nodes")
        page.until(lambda: "Insufficient cpu" in page.text("#pending"), "the pod that waits")
        assert page.script("return document.documentElement.scrollWidth") <= PHONE[0]


def test_five_thousand_nodes_are_one_picture_and_no_elements_whatever_resource_is_shown(page, cluster):
    """Drawn anew for each resource; as many elements would take ten times as long."""
    fill(cluster, workers=0, nodes=5000)
    show(page, cluster)
    page.until(lambda: page.text("#nodes-count") == "5,000", "the nodes")
    for number in range(1, 1 + len(page.text("#resources").split())):
        page.press(f"#resources button:nth-child({number})")
        assert page.script("""
            const heat = document.querySelector('#heat');
            const pixels = heat.getContext('2d').getImageData(0, 0, heat.width, heat.height).data;
            return pixels.some((value, i) => i % 4 === 3 && value > 0);
        """)
        assert page.script("return document.querySelectorAll('*').length") < 500


def test_the_page_goes_on_by_itself_when_a_standby_takes_over(page, tmp_path):
    with Cluster(tmp_path, dispatchers=2, workers=["w1"]) as cluster:
        cluster.start_dashboard()
        fill(cluster, workers=1, nodes=10)
        load(cluster, replicas=20)
        show(page, cluster)
        page.until(lambda: page.text("#f-bound") == "20", "the pods to be bound")
        cluster.kill("dispatcher")
        page.until(lambda: page.text("#link") == "Reconnecting", "the page to say that it waits")
        assert page.text("#f-bound") == "20"  # what was known stays to be read
        page.until(lambda: page.link() == "live", "the standby to take over")
        assert not page.text("#notice")
        load(cluster, name="more", replicas=5)
        page.until(lambda: page.text("#f-bound") == "25", "news to come again")
        assert f"at {cluster.address('dispatcher-2')}" in page.text("#about")


def test_a_list_that_is_opened_while_no_dispatcher_answers_says_that_it_waits(page, cluster):
    fill(cluster, workers=0, nodes=10)
    show(page, cluster)
    cluster.kill("dispatcher")
    page.until(lambda: page.text("#link") == "Reconnecting", "the page to say that it waits")
    # The first until a connection to it was refused.
    assert any(words in page.text("#notice") for words in (SLOW_DISPATCHER, NO_DISPATCHER))
    page.open(f"{cluster.dashboard()}tenants")
    page.until(lambda: "Tenants" in page.text("#page"), "the list")
    assert "Reading …" in page.text("#page")
    page.until(lambda: "Reading …" not in page.text("#page"), "the reason why there is no list")
    assert page.text("#page .why")


def test_a_dashboard_that_starts_again_is_found_again(page, cluster):
    fill(cluster, workers=0, nodes=10)
    show(page, cluster)
    listen = cluster.dashboard().removeprefix("http://").rstrip("/")
    cluster.kill("dashboard")
    page.until(lambda: page.link() == "lost", "the lost connection to be shown")
    assert "has not answered since" in page.text("#notice")
    assert page.text("#nodes-count") == "10"
    cluster.start_dashboard("--listen", listen)
    page.until(lambda: page.link() == "live", "the connection to come back")


@pytest.fixture(scope="module")
def closed() -> Iterator[platform.Starter]:
    """A platform as `hoss up` starts it: it asks who looks."""
    options = platform.PlatformOptions(
        workers=(platform_state.WorkerOptions(WORKER),), dashboard_listen="127.0.0.1:0"
    )
    with platform.temporary(options) as starter:

        async def submit_pods() -> None:
            async with clients_of(of_state(starter.state)) as clients:
                await prepare(clients, workers=1, nodes=5)
                for namespace, replicas in (("blue", 3), ("red", 4)):
                    template = PodTemplate(PodSpec(namespace=namespace), owner_kind="Job")
                    for request in submission([Workload(f"of-{namespace}", template, replicas)]):
                        await clients.dispatcher.submit(request)

        run_async(submit_pods())
        yield starter


def test_the_link_of_hoss_up_logs_in_and_logging_out_shows_nothing_more(page, closed):
    (link,) = platform.dashboard_links(closed.directory, closed.state)
    page.open(link)
    page.until(lambda: page.text("#f-bound") == "7", "the pods of all")
    assert page.script("return location.hash") == ""
    page.until(lambda: page.text("#workers .act button"), "the actions of an operator")
    page.press("#workers .act button")
    page.until(lambda: "Cordoned" in page.text("#workers"), "the worker to be cordoned")
    page.press("#workers .act button")
    page.until(lambda: "Ready" in page.text("#workers"), "the worker to be ready again")
    page.script("location.reload()")
    page.until(lambda: page.text("#f-bound") == "7", "the session to outlast a reload")
    page.press("#unlock")
    page.until(lambda: "Log in to look" in page.text("#notice"), "the way to log in to be shown")
    page.open(closed.state.dashboards[0] + "?again")
    page.until(lambda: "Log in to look" in page.text("#notice"), "nothing else to be shown")
    assert not page.text("#overview")
    page.open(link)  # which was used
    page.until(lambda: "used before" in page.text("#token-form"), "the link to be refused")
    assert not page.errors()


def test_a_tenants_viewer_sees_the_tenants_pods_alone(page, closed):
    authority = Authority(closed.directory / platform.SECURITY_DIRECTORY)
    viewer = Identity(CallerKind.CLIENT, "vic", Role.VIEW, "blue")
    token = authority.create_token(viewer, now=THIS_HOST.utc_now(), lifetime=timedelta(hours=1))
    page.open(closed.state.dashboards[0] + "?tenant")
    page.until(lambda: page.text("#token-form"), "the form")
    page.script("document.querySelector('#token').focus()")
    page.keys(token, "\n")
    page.until(lambda: page.text("#f-bound") == "3", "the tenant's pods")
    for selector in ("#nodes", "#workers", "#conflicts", "#f-workers", "#rate-chart"):
        assert not page.text(selector)
    assert page.text("#pages").split() == ["Overview", "Jobs", "Pods", "Tenants"]
    page.press("#pages [data-page=pods]")
    page.until(lambda: page.text("#page tbody").count("blue/of-blue-") == 3, "its pods in the list")
    assert "red/" not in page.text("#page")
    page.press("#pages [data-page=tenants]")
    page.until(lambda: "blue" in page.text("#page tbody"), "its tenant")
    assert "red" not in page.text("#page tbody")
    page.script("history.pushState(null, '', '/timeline'); dispatchEvent(new PopStateEvent('popstate'))")
    page.until(lambda: "you may see tenant blue alone" in page.text("#page"), "why there is no timeline")
    page.press("#pages [data-page=overview]")
    for name, found in (("blue/of-blue-0", "blue/of-blue-0: bound"), ("red/of-red-0", "No pod is called")):
        page.script("const e = document.querySelector('#find-name'); e.value = ''; e.focus()")
        page.keys(name, "\n")
        page.until(lambda found=found: found in page.text("#story"), found)
    page.press("#pages [data-page=jobs]")
    page.press("#unlock")
    page.until(lambda: "Log in to look" in page.text("#notice"), "the end of the session")
    assert not page.script("return document.querySelector('#page').checkVisibility()"), "no empty card"
    assert not page.errors()
