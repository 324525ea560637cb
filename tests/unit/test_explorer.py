"""The explorer without a browser: its model, its sliders, its file, its server."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
import threading
from base64 import b64decode
from hashlib import sha256
from http.client import HTTPConnection
from itertools import combinations
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.errors import ExplorerPort, ExplorerTooLarge
from maskc.core.evaluator import evaluate
from maskc.lab.explorer import model as model_module
from maskc.lab.explorer import notebook_cell as notebook
from maskc.lab.explorer.model import mask_model, tree
from maskc.lab.explorer.notebook_cell import Frame
from maskc.lab.explorer.page import MODULES, html, joined, source
from maskc.lab.explorer.server import HOST, ExplorerServer
from maskc.lab.explorer.sliders import movable, movable_mask
from tests.support.cli import maskc
from tests.support.patterns import FOLDER

MASK = mc.causal() & (mc.sinks(4) | mc.window(40))


def pattern(name):
    return mc.load(FOLDER / f"{name}.py")[name]


# ------------------------------------------------------------------ the model


def value(node, env):
    """Evaluate a tree: an own reading of it, as formula.js has one."""
    if isinstance(node, (bool, int)):
        return node
    if isinstance(node, str):
        return env[node]
    kind, *rest = node
    match kind:
        case "+":
            return rest[0] + sum(factor * value(part, env) for factor, part in rest[1:])
        case "//" | "%":
            num = value(rest[0], env)
            return num // rest[1] if kind == "//" else num % rest[1]
        case "min" | "max":
            return (np.minimum if kind == "min" else np.maximum).reduce(
                np.broadcast_arrays(*(value(part, env) for part in rest))
            )
        case "param":
            return env[rest[0]]
        case "load":
            return env[rest[0]][tuple(value(part, env) for part in rest[1:])]
        case ">=":
            return value(rest[0], env) >= 0
        case "==":
            return value(rest[0], env) == 0
        case "!=":
            return value(rest[0], env) != 0
        case "in":
            found = value(rest[0], env)
            inside = sum((low <= found) & (found <= high) for low, high in rest[1]) > 0
            return inside == rest[2]
        case "and" | "or":
            join = np.logical_and if kind == "and" else np.logical_or
            return join.reduce(np.broadcast_arrays(*(value(part, env) for part in rest)))
    raise ValueError(kind)


@pytest.mark.parametrize("name", ["streaming", "dilated_longformer", "logsparse", "vertical_slash"])
def test_trees_mean_the_mask_after_json(name):
    shown = mask_model(pattern(name)(), 90, 130)
    shown = json.loads(json.dumps(shown))
    env = {
        "n_q": 90, "n_kv": 130, "q": np.arange(90)[:, None], "k": np.arange(130)[None, :],
        **{param["name"]: param["value"] for param in shown["params"]},
    }  # fmt: skip
    dense = pattern(name)().dense(90, 130)
    assert (value(shown["sets"][0]["keep"], env) == dense).all()
    assert (value(shown["sets"][0]["terms"][0]["keep"], env) == dense).all()
    assert shown["sets"][0]["live"] == dense.sum()


def test_arrays_travel_once_and_as_small_as_they_are():
    ids = np.repeat(np.arange(8), 8)
    shown = mask_model(mc.documents("doc") & mc.causal(), 64, data={"doc": ids})
    assert set(shown["sets"][0]["arrays"]) == {"doc.q", "doc.k"}
    (only,) = shown["arrays"].values()
    assert only["kind"] == "int8"
    assert np.frombuffer(b64decode(only["data"]), dtype=np.int8).tolist() == ids.tolist()
    assert "doc.k" in shown["fixed"]


def test_what_a_selection_chose_is_shown_where_scores_are_given():
    mask = mc.topk(3, mc.causal(), "given")
    scores = np.random.default_rng(0).permutation(400).reshape(20, 20).astype(np.float32)
    chosen = mask_model(mask, 20, data={"scores": scores})
    assert chosen["sets"][0]["live"] == mask.dense(20, scores=scores).sum()
    hull = mask_model(mask, 20)
    assert hull["sets"][0]["live"] == mc.causal().count(20)
    assert any("topk" in note for note in hull["notes"])


def test_arrays_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(model_module, "MAX_BYTES", 100)
    with pytest.raises(ExplorerTooLarge) as found:
        mask_model(mc.documents("doc"), 512, data={"doc": np.arange(512)})
    assert str(found.value) == (
        "MC720  the arrays of this mask take 1,033 bytes; a page holds at most 100\n"
        "    hint: explore a shorter sequence: --n sets the lengths if data are made up"
    )


def test_numbers_beyond_doubles_have_no_tree():
    wide = mask_model(mc.where(lambda q, k: (1 << 55) * q + 5 * k >= 3 * (1 << 55)), 10)
    assert wide["sets"][0]["keep"] is None
    assert wide["sets"][0]["shader"] is None


# ------------------------------------------------------------------ sliders


def test_a_patterns_numbers_become_parameters():
    made = movable(pattern("longformer"), {"window": 100})
    assert dict(made.labels) == {"window": "window", "n_global": "n_global"}
    assert made.stuck == ()
    at = {"window": 7, "n_global": 3}
    assert (made.mask.dense(60, **at) == pattern("longformer")(**at).dense(60)).all()
    assert E.params(driver.lowered(made.mask).keep) == {"n_global": 64, "window": 100}


def test_numbers_that_shape_the_formula_stay():
    made = movable(pattern("dilated_longformer"), {})
    assert ("dilation", 2) in made.stuck
    assert "window" in made.labels


def test_an_expressions_numbers_become_parameters():
    made = movable_mask(MASK | mc.sinks(2), {"window"})
    assert dict(made.labels) == {"sinks": "sinks", "window_2": "window", "sinks_2": "sinks_2"}
    again = mc.causal() & (mc.sinks(1) | mc.window(5)) | mc.sinks(9)
    given = {"sinks": 1, "window_2": 5, "sinks_2": 9}
    assert (made.mask.dense(50, **given) == again.dense(50)).all()


# ------------------------------------------------------------------ the file


def test_the_file_runs_one_script_and_asks_nobody():
    shown = {"name": "<b>&", "mask": mask_model(MASK, 64)}
    page = html(shown)
    policy = re.search('Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'")
    assert "connect-src 'none'" in policy
    for kind, tag in (("script", "module"), ("style", "style")):
        body = re.search(
            r'<script type="module">(.*?)</script>' if tag == "module" else "<style>(.*?)</style>",
            page, re.DOTALL,
        )[1]  # fmt: skip
        digest = sha256(body.encode()).digest()
        assert any(
            b64decode(known) == digest
            for known in re.findall(rf"{kind}-src 'sha256-([^']*)'", policy)
        )
    assert "<title>&lt;b&gt;&amp; · maskc</title>" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_user_text_cannot_end_its_element():
    hostile = "</script><script>alert(1)</script>"
    page = html({"name": hostile, "title": hostile, "mask": mask_model(MASK, 64)})
    assert page.count("</script>") == 2
    assert page.count("<script") == 2


def test_joined_modules_have_no_imports_and_no_name_twice():
    text = joined("start.js")
    assert not re.search(r"^(import|export)\b", text, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", text, re.MULTILINE)
    assert sorted(names) == sorted(set(names))
    for name in MODULES:  # each uses only earlier ones
        for used in re.findall(r'from "\./(\w+\.js)"', source(name)):
            assert MODULES.index(used) < MODULES.index(name)


def test_no_markup_is_ever_made_of_text():
    for name in (*MODULES, "start.js", "widget.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(|document\.write",
                             source(name)), name  # fmt: skip


def test_notebooks_without_anywidget_get_a_frame():
    frame = Frame({"name": 'a"b', "mask": mask_model(MASK, 64)}, 500)
    text = frame._repr_html_()
    assert text.startswith('<iframe sandbox="allow-scripts" srcdoc="')
    assert text.count('"') == 6
    assert "causal() & (sinks(4)" in repr(frame)


# ------------------------------------------------------------------ the command and the server


def test_the_command_writes_one_file(tmp_path):
    place = tmp_path / "mask.html"
    words = ("--n", 300, "--with", "causal()", "--target", "cpu", "-o", place)
    assert maskc("explore", "--expr", "causal() & window(9)", *words).stdout == f"{place}\n"
    shown = written(place)
    assert shown["mask"]["n_q"] == 300
    assert [param["label"] for param in shown["mask"]["params"]] == ["window"]
    assert "subset" in shown["verdict"]["said"]
    files = shown["source"]["files"]
    assert [file["name"] for file in files] == ["pattern", "IR", "C"]
    assert files[0]["text"].strip() == "causal() & window(9)"
    assert files[0]["links"] == [[1, 1]]
    assert not shown["served"]


def written(place):
    """The model in a page."""
    return json.loads(re.search('id="model">(.*?)</script>', place.read_text())[1])


def test_the_command_takes_the_callers_arrays(tmp_path):
    """The picture shows their mask, not one of arrays that were made up."""
    ids, place = np.sort(np.random.default_rng(1).integers(0, 9, 300)), tmp_path / "mask.html"
    np.save(tmp_path / "ids.npy", ids.astype(np.int32))
    words = ("--n", 300, "--target", "cpu", "--data", f"doc={tmp_path / 'ids.npy'}", "-o", place)
    maskc("explore", "documents", *words)
    (only,) = written(place)["mask"]["sets"]
    assert only["live"] == mc.load(FOLDER / "documents.py")["documents"]().dense(300, doc=ids).sum()
    (array,) = written(place)["mask"]["arrays"].values()
    assert np.frombuffer(b64decode(array["data"]), dtype=np.int8).tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("(window(40) | sinks(4)) & causal()", "Proved: both are the same set at all lengths."),
        ("causal()", "Proved: mask is a subset of other at all lengths, and not equal."),
        ("causal() & sinks(2)", "Proved: other is a subset of mask at all lengths, and not equal."),
        ("prefix(8)", "Neither is a subset of the other."),
    ],
)
def test_what_is_proved_of_two_masks(tmp_path, other, said):
    """Masks that differ come with a pair that tells them apart."""
    place = tmp_path / "mask.html"
    words = ("--n", 64, "--target", "cpu", "--with", other, "-o", place)
    maskc("explore", "--expr", str(MASK), *words)
    verdict = written(place)["verdict"]
    assert verdict["said"].replace("--expr", "mask") == said
    found = verdict["witness"]
    assert (found is None) == ("same" in said)
    if found is not None:
        n_q, n_kv, q, k = (found[name] for name in ("n_q", "n_kv", "q", "k"))
        second = mc.parse(other)
        assert MASK.dense(n_q, n_kv)[q, k] != second.dense(n_q, n_kv)[q, k]


def test_the_command_refuses_what_it_cannot_do(tmp_path):
    maskc("explore", "causal", "-o", "mask.pdf", code=2)
    assert "choose one" in maskc("explore", FOLDER, "-o", "x.html", code=2).stderr
    taken = ExplorerServer(lambda query: {})
    with pytest.raises(ExplorerPort) as found:
        ExplorerServer(lambda query: {}, urlsplit(taken.url).port)
    taken._server.server_close()
    assert str(found.value).startswith("MC721 --port  the explorer cannot listen on 127.0.0.1:")


@pytest.fixture
def server():
    def models(query):
        if "with" in query:
            mc.parse(query["with"][0])
        return {"name": "served", "served": True, "mask": mask_model(MASK, 64), "asked": query}

    made = ExplorerServer(models)
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.stop()
    thread.join(10)
    assert not thread.is_alive()


def get(server, path, **headers):
    port = urlsplit(server.url).port
    connection = HTTPConnection(HOST, port, timeout=10)
    connection.putrequest("GET", path, skip_host=True)
    for name, content in {"Host": f"{HOST}:{port}", **headers}.items():
        connection.putheader(name, content)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def test_the_server_answers_its_own_page_alone(server):
    token = urlsplit(server.url).path
    status, page, headers = get(server, token)
    assert status == 200
    assert "connect-src 'self'" in page
    assert headers["X-Frame-Options"] == "DENY"
    status, text, _ = get(server, f"{token}model?n=8&set=window%3D3")
    assert (status, json.loads(text)["asked"]) == (200, {"n": ["8"], "set": ["window=3"]})
    assert get(server, "/")[0] == 404
    assert get(server, "/wrong/")[0] == 404
    assert get(server, f"{token}../etc/passwd")[0] == 404
    assert get(server, token, Host="example.org")[0] == 421
    assert get(server, token, Origin="http://example.org")[0] == 403
    status, text, _ = get(server, f"{token}model?with=__import__('os')")
    assert status == 400
    assert text.startswith("MC")
    assert urlsplit(server.url).hostname == "127.0.0.1"


def test_ctrl_c_stops_the_command():
    """It prints one address, serves it, and ends as asked."""
    words = ("explore", "--expr", "causal()", "--no-browser", "--target", "cpu")
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a background job
    run = subprocess.Popen(
        [sys.executable, "-m", "maskc", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    signal.signal(signal.SIGINT, ignored)
    with run:
        place = urlsplit(run.stdout.readline().strip())
        assert place.hostname == HOST
        connection = HTTPConnection(HOST, place.port, timeout=60)
        connection.request("GET", place.path)
        assert connection.getresponse().status == 200
        run.send_signal(signal.SIGINT)
        try:
            _, said = run.communicate(timeout=60)
        finally:
            run.kill()
    assert (run.returncode, said) == (0, "Ctrl-C stops\nstopped\n")


def test_tokens_differ():
    one, other = ExplorerServer(lambda query: {}), ExplorerServer(lambda query: {})
    assert one.token != other.token
    assert len(one.token) >= 32
    for each in (one, other):
        each._server.server_close()


def test_the_tree_of_every_node_is_known():
    """A node without a tree raises; there is one for each class that masks' formulas are made of,
    of which no Pick is left when they are traced."""
    classes = {
        node.name for node in ast.parse(Path(E.__file__).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name not in ("Term", "Expr", "Pick")
    }  # fmt: skip
    keep = E.conj(
        E.ge(E.minimum(E.Q, E.add(E.maximum(E.K, E.const(3)), E.Param("w", 1))), E.ZERO),
        E.disj(E.member(E.K, [1, 2, 9]), E.eq(E.mod(E.Q, 3), E.const(1)), E.Truth(False),
               E.gt(E.Load("a", (E.floordiv(E.K, 2),)), E.ZERO)),
    )  # fmt: skip
    met = {type(node).__name__ for node in E.walk(keep)} | {"Truth"}
    assert met == classes
    env = {"q": np.arange(9)[:, None], "k": np.arange(9)[None, :], "w": 2, "a": np.arange(9) - 3}
    assert (value(tree(keep), env) == evaluate(keep, env)).all()


def test_show_takes_what_notebooks_have(monkeypatch):
    """A widget with anywidget, a frame without; the model is the same."""
    monkeypatch.setattr(notebook, "_widget_class", lambda: None)
    frame = mc.show(MASK, 200, other=mc.causal(), target="cpu")
    assert isinstance(frame, Frame)
    labels = [each["label"] for each in frame._model["mask"]["params"]]
    assert labels == ["sinks", "window"]
    assert "subset" in frame._model["verdict"]["said"]
    monkeypatch.undo()
    pytest.importorskip("anywidget")
    shown = json.loads(mc.show(MASK, 200, target="cpu", height=300).page)
    assert shown["embedded"]
    with pytest.raises(mc.MaskcError, match="MC106"):
        mc.show(3)


# ------------------------------------------------------------------ colours


# Vienot, Brettel, Mollon 1999 (red and green) and a projection for blue, on linear RGB.
VISION = {
    "all": np.eye(3),
    "no red": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
    "no green": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
    "no blue": np.array([[1, 0.1462, -0.1462], [0, 0.8592, 0.1408], [0, 0.8592, 0.1408]]),
    "none": np.tile([0.2126, 0.7152, 0.0722], (3, 1)),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
TOGETHER = [
    ("full", "partial", "empty"), ("full", "second", "waste", "empty"),
    ("only-a", "only-b", "both", "empty"),
]  # fmt: skip


def palettes():
    """{theme: {name: linear RGB}}; the dark one stands there twice, alike."""
    style = source("style.css")
    blocks = re.findall(r"\{[^{}]*--paper:[^{}]*\}", style)
    light, dark, again = [dict(re.findall(r"--([a-z-]+): (#\w{6})", block)) for block in blocks]
    assert dark == again
    return {"light": light, "dark": dark}


def linear(color):
    share = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / (TO_XYZ @ np.ones(3))
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_colours_of_one_map_are_told_apart(theme, vision):
    """A difference of 10 in CIELAB is seen at a glance."""
    known = palettes()[theme]
    for names in TOGETHER:
        seen = {name: lab(VISION[vision] @ linear(known[name])) for name in names}
        for one, other in combinations(names, 2):
            assert np.linalg.norm(seen[one] - seen[other]) >= 10, (one, other)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(theme):
    """WCAG AA: 4.5 for text, 3 for what marks the focus."""
    known = {name: linear(color) @ TO_XYZ[1] for name, color in palettes()[theme].items()}

    def contrast(one, other):
        low, high = sorted((known[one], known[other]))
        return (high + 0.05) / (low + 0.05)

    for ground in ("paper", "panel"):
        for ink in ("ink", "quiet", "yes", "no"):
            assert contrast(ink, ground) >= 4.5, (ink, ground)
        assert contrast("focus", ground) >= 3
    assert contrast("ink", "mark") >= 4.5
    assert contrast("paper", "full") >= 4.5  # a pressed button
