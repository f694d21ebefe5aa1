"""`moeir report --output page.html`: one self-contained file that runs only its own script, and works with mouse and keyboard."""

import base64
import hashlib
import json
import re
import shlex
import shutil
from html import unescape
from pathlib import Path

import pytest

from moeir.reporting.explanations import Explanations
from tests import browser
from tests.conftest import run_moeir

EVIL = '</script><script>alert("1")</script><!-- \' " & \u2028 <img src=x onerror=alert(2)> [[SCRIPT]]'
EXPERTS = ("lexical", "local", "global", "fused")
RUNS = " ".join(f"--run runs/{name}.trec" for name in EXPERTS)
JUDGED = "--queries queries.tsv --qrels qrels"
FULL = f"{RUNS} {JUDGED} --corpus corpus.jsonl --depth 3"
SEARCH = "search --queries queries.tsv"
needs_chromium = pytest.mark.skipif(browser.PROGRAM is None, reason="chromium is not installed")


@pytest.fixture(scope="module", autouse=True)
def room(tmp_path_factory, index, bm25_index, toy):
    """The working folder: runs of the toy queries, with texts that contain markup, and a training."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "idx").symlink_to(index)
    (folder / "bm25").symlink_to(bm25_index)
    queries = (toy / "test-queries.tsv").read_text().replace("hollow tree", f"hollow tree {EVIL}")
    (folder / "queries.tsv").write_text(queries)
    corpus = [json.loads(line) for line in (toy / "corpus.jsonl").read_text().splitlines()]
    corpus[0]["title"], corpus[0]["text"] = EVIL, corpus[0]["text"] + EVIL
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in corpus))
    (folder / "qrels").write_bytes((toy / "test-qrels.tsv").read_bytes())
    training = [{"step": number, "loss": 3.0 - number / 20, "share.local": 0.5, "share.global": 0.5} for number in range(1, 31)]
    (folder / "trained").mkdir()
    (folder / "trained" / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in training))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_moeir(*f"{SEARCH} --index idx --explain why.jsonl --corpus corpus.jsonl --output runs".split())
        yield folder


@pytest.fixture(scope="module")
def full_page(room):
    """A page with all that a page can have."""
    assert report(f"{FULL} --index idx --training trained", room / "page.html", "--title", EVIL) == []
    return room / "page.html"


def report(flags, page, *more):
    """Write a page and return the messages."""
    result = run_moeir("report", *shlex.split(flags), *more, "--output", page)
    assert result.stdout == ""
    return result.messages


def read_blocks(page):
    """The data of a page by the id of its script."""
    scripts = re.findall(r'<script [^>]*id="([^"]+)"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    return {name: json.loads(content) for name, content in scripts}


def test_a_page_holds_one_script_and_one_style_that_its_policy_knows_and_nothing_from_elsewhere(full_page):
    text = full_page.read_text()
    policy = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', text)[0]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        (code,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" in policy
        starters = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|fetch\(|XMLHttp|import\("
        assert not re.search(rf"https?://(?!www\.w3\.org/2000/svg)|@import|url\(|{starters}", code)
    tags = re.findall(r"<[a-z][^>]*>", re.sub(r"(<script[^>]*>).*?</script>", r"\1", text, flags=re.DOTALL))
    assert re.findall(r'(?:src|href|action|data|srcset|poster)="([^#"]+)"', "".join(tags)) == ["data:,"]
    assert not re.search(r"\s(on\w+|style)=|<(img|iframe|object|embed|form|base)\b", "".join(tags))


def test_texts_stay_texts(full_page):
    blocks, text = read_blocks(full_page), full_page.read_text()
    assert EVIL in blocks["data"]["texts"][0]
    owl = next(one for one in blocks["texts-0"] if one[0] == "owl")
    assert owl[1] == EVIL and owl[2].endswith(EVIL)
    assert "<" not in json.dumps(blocks["data"]["texts"]).replace(json.dumps(EVIL)[1:-1], "")
    assert [unescape(one) for one in re.findall(r"<h1[^>]*>(.*?)</h1>", text)] == [EVIL] and EVIL in unescape(text.partition("</title>")[0])


def test_a_page_tells_what_the_runs_hold_and_the_reasons_that_search_wrote(full_page):
    blocks = read_blocks(full_page)
    data = blocks["data"]
    assert data["runs"] == list(EXPERTS) and data["queries"] == ["q1", "q2", "q3", "q4", "q5", "q6"] and data["answers"][4] == 1
    assert data["judged"]["measures"] == ["nDCG@10", "RR@10", "R@100"] and data["judged"]["p_header"] == "p (Holm)"
    assert [len(blocks["cases-0"]), len(blocks["texts-0"])] == [6, 12]
    assert blocks["cases-0"][0]["x"] == ["lexical", "local", "global"] and {"p", "t", "k"} <= blocks["cases-0"][0].keys()
    assert data["trainings"][0]["name"] == "trained" and data["trainings"][0]["charts"][0]["title"] == "share"
    names = [row[0] for row in blocks["texts-0"]]
    shown = {query: [names[number] for number in case["d"]] for query, case in zip(data["queries"], blocks["cases-0"], strict=True)}
    written = Explanations(map(json.loads, Path("why.jsonl").read_text().splitlines()), shown.__getitem__)
    for query, case in zip(shown, blocks["cases-0"], strict=True):
        reasons = written.for_query(query)
        assert {"p", "t", "k"} <= reasons.keys() and {name: case[name] for name in reasons} == reasons


def test_parts_that_do_not_add_up_are_left_out(run, tmp_path):
    run(f"fuse {RUNS.replace('--run runs/fused.trec', '')} --method rrf --output {tmp_path}/fused.trec")
    (message,) = report(f"{FULL.replace('runs/fused', f'fused={tmp_path}/fused')} --index idx", tmp_path / "page.html")
    assert message.startswith("fused: its scores are not came-sum of the experts' runs; parts are left out")
    cases = read_blocks(tmp_path / "page.html")["cases-0"]
    assert not any("p" in case for case in cases) and all("t" in case for case in cases)


def test_a_document_that_no_expert_has_is_explained_without_parts(run, tmp_path):
    run(f"{SEARCH} --index idx --depth 2 --output {tmp_path}/runs")
    ids = sorted(json.loads(line)["_id"] for line in Path("corpus.jsonl").read_text().splitlines())
    (tmp_path / "every.trec").write_text("".join(f"q1 Q0 {name} 1 {-place} t\n" for place, name in enumerate(ids)))
    runs = f"{RUNS} --run every.trec".replace("--run ", f"--run {tmp_path}/")
    (message,) = report(f"{runs} {JUDGED} --depth 12 --index idx", tmp_path / "page.html")
    assert message.startswith("every: shown without")
    case = read_blocks(tmp_path / "page.html")["cases-0"][0]
    alone = [place for place, ranks in enumerate(zip(*case["r"], strict=True)) if not any(ranks[:4])]
    assert len(case["d"]) == 12 and alone
    assert [case["p"][place] for place in alone] == [[None, None, None]] * len(alone)
    assert all(case["k"]["local"][place] for place in alone)
    assert all(None not in parts for place, parts in enumerate(case["p"]) if place not in alone)


def test_a_page_needs_no_texts_and_the_same_sources_make_the_same_page(tmp_path):
    pages = [tmp_path / f"{name}.html" for name in ("first", "second")]
    assert [report("--run runs/fused.trec --qrels qrels", page) for page in pages] == [[], []]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    blocks = read_blocks(pages[0])
    assert blocks["data"]["texts"][0] == "" and ["owl"] in blocks["texts-0"]
    assert "already made" in report("--run runs/fused.trec --qrels qrels", pages[0])[0]
    assert report("--training trained", tmp_path / "trained.html") == []


@pytest.fixture
def opened(full_page, tmp_path):
    with browser.Browser(tmp_path / "profile") as one:
        one.open(full_page)
        yield one


@needs_chromium
def test_in_a_browser_nothing_is_asked_of_a_network_and_nothing_complains(opened, full_page, tmp_path):
    assert [one for one in opened.requests if one != "data:,"] == [full_page.resolve().as_uri()]
    assert opened.problems == []
    assert opened.evaluate("document.querySelector('.asked').textContent").endswith(EVIL)
    opened.click(".hit.answer")
    assert opened.evaluate("document.querySelector('.passage b').textContent") == EVIL
    assert opened.evaluate("document.querySelectorAll('img').length") == 0
    assert opened.evaluate("[...document.querySelectorAll('main > section')].every(one => !one.hidden)") is True
    opened.resize(390, 844)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390


@needs_chromium
def test_queries_are_browsed_by_click_and_by_key(opened):
    asked, chosen = "document.querySelector('.asked').textContent", "document.querySelector('.why .id').textContent.trim()"
    focus = "document.activeElement.className || document.activeElement.id"
    opened.click("#query-2")
    assert opened.evaluate(asked) == "who swims across the sea" and opened.evaluate(chosen) == "eel"
    opened.press("ArrowDown")
    assert opened.evaluate(asked).startswith("tree that grows")
    assert opened.evaluate("document.querySelectorAll('[aria-selected=true]').length") == 1
    opened.press("Enter")
    assert opened.evaluate(focus).startswith("hit") and opened.evaluate("document.activeElement.tabIndex") == 0
    first = "document.activeElement.closest('ol').querySelector('.hit') === document.activeElement"
    before = opened.evaluate(chosen)
    opened.press("ArrowDown" if opened.evaluate(first) else "ArrowUp")
    assert opened.evaluate(chosen) != before
    column = opened.evaluate("document.activeElement.dataset.run")
    opened.press("ArrowRight" if column == "0" else "ArrowLeft")
    assert opened.evaluate("document.activeElement.dataset.run") != column
    opened.press("n")
    assert opened.evaluate(asked) == "why does ice float on water"
    opened.press("Escape")
    assert opened.evaluate(focus) == "queries"
    opened.press("/")
    assert opened.evaluate(focus) == "search"
    opened.send("Input.insertText", text="ANTS nest")
    assert opened.evaluate("document.getElementById('count').textContent") == "1 query of 6"
    assert opened.evaluate(asked) == "how do ants find the nest"
    opened.press("Enter")
    assert opened.evaluate(focus) == "queries" and opened.problems == []


@needs_chromium
def test_a_set_of_runs_and_a_bubble_show_their_queries_and_the_theme_turns(opened):
    number = int(opened.evaluate("document.querySelector('#found .row .num').firstChild.textContent"))
    opened.click("#found .row")
    assert opened.evaluate("document.getElementById('count').textContent").startswith(f"{number} quer")
    opened.evaluate("document.querySelector('#scatter svg').focus()")
    opened.press("ArrowRight", "Enter")
    assert "lexical " in opened.evaluate("document.getElementById('count').textContent")
    opened.click("#count button")
    assert opened.evaluate("document.getElementById('count').textContent") == "6 queries"
    paper = "getComputedStyle(document.body).backgroundColor"
    opened.set_color_scheme("light")
    light = opened.evaluate(paper)
    opened.set_color_scheme("dark")
    dark = opened.evaluate(paper)
    opened.click("#theme")
    assert opened.evaluate(paper) == light != dark
    opened.click("#theme")
    opened.set_color_scheme("light")
    assert opened.evaluate(paper) == dark and opened.problems == []


NO_EXPERT = "shown without explanations: not an expert's run that moeir search wrote with "


def test_a_run_belongs_to_the_index_of_its_manifest_whatever_its_name(run, tmp_path):
    run(f"{SEARCH} --index idx --expert local --output {tmp_path}/mine.trec")
    shutil.copy("runs/global.trec", tmp_path / "lexical.trec")  # a name alone says nothing
    page = tmp_path / "page.html"
    (message,) = report(f"--run 'my run={tmp_path}/mine.trec' --run {tmp_path}/lexical.trec {JUDGED} --index idx", page)
    assert message.startswith(f"lexical: {NO_EXPERT}")
    blocks = read_blocks(page)
    assert blocks["data"]["runs"] == ["my run", "lexical"] and blocks["data"]["experts"] == {"local": "my run"}
    assert all(case["x"] == ["local"] for case in blocks["cases-0"] if case["d"])
    assert report(f"--run global={tmp_path}/lexical.trec {JUDGED} --index idx --force", page) == []
    assert read_blocks(page)["data"]["experts"] == {"global": "global"}


@pytest.mark.parametrize(("flags", "words", "experts"), [
    ("--run came=runs/fused.trec --index idx", "came: shown without explanations, which need the runs of its experts: name them", ()),
    ("{RUNS} --index bm25", "lexical, local, global, fused: shown without", ()),
    ("{RUNS} --run {tmp_path}/bm25.trec --run {tmp_path}/all.trec --index idx", f"bm25, all: {NO_EXPERT}", EXPERTS),
])  # fmt: skip
def test_runs_of_another_index_or_of_several_or_without_those_of_the_experts_are_shown_without_explanations(
    flags, words, experts, run, tmp_path
):
    run(f"{SEARCH} --index bm25 --output {tmp_path}/bm25.trec")
    run(f"fuse --run {tmp_path}/bm25.trec runs/fused.trec --output {tmp_path}/all.trec")
    (message,) = report(f"{flags.format(RUNS=RUNS, tmp_path=tmp_path)} {JUDGED}", tmp_path / "page.html")
    blocks = read_blocks(tmp_path / "page.html")
    assert message.startswith(words) and blocks["data"].get("experts", {}) == {name: name for name in experts}
    assert experts or not any("x" in case for case in blocks["cases-0"])
