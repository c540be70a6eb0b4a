"""The page: what it says, what it must never say, and that hostile text stays text."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from opbench import report, units
from opbench.errors import EnvironmentFault
from opbench.gpu.limits.ceilings import committed_ceilings
from opbench.gpu.limits.lower_bound import AbovePeak
from opbench.insight.advice import Advice
from opbench.insight.gains import Gain
from opbench.paths import shipped_folder
from opbench.report import write_report
from opbench.report.run.sections import sections
from opbench.report.run.top_bars import costliest_sentence, traffic_bars, winner_bars
from opbench.report.terminal import print_table
from opbench.results.advice import CaseAdvice
from opbench.results.files import read_run
from opbench.results.rows import rows
from support.builders.runs import TAKEN, cpu_run, matmul_run, relu_run, result, run
from support.checks.errors import refuses
from support.checks.pages import Tags, page, words

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>`$\\frac{a}"


def test_the_verdict_comes_first(tmp_path: Path) -> None:
    text = words(page(relu_run(), tmp_path))
    assert "10 cases: 6 right, 1 wrong, 1 failed, 1 invalid, 1 unsupported" in text
    assert (
        "vec4 is fastest at 2.20 ms and wins by 10.0 % (8.5 to 11.6 %) over the library torch: "
        "1.83× as fast as the first variant naive [1.79, 1.87], 91 % of measured bandwidth." in text
    )
    assert text.index("is fastest") < text.index("Ranking") < text.index("How this was found")


def test_the_users_variant_comes_first_with_its_place(tmp_path: Path) -> None:
    names = {"vec4": 1e-3, "slow": 3e-3, "mine": 2e-3}
    found = run([result(name, seconds) for name, seconds in names.items()], own=("relu/mine",))
    section = sections(rows(found))[0]
    assert section.subject is not None and section.subject.variant == "mine"
    text = words(page(found, tmp_path))
    place = "mine takes 2.00 ms (rank 2 of 3): 2.00× as long as vec4."
    assert text.index(place) < text.index("vec4 is fastest")
    out = io.StringIO()
    print_table(rows(found), Console(file=out, width=200))
    assert place in out.getvalue()


def test_a_lead_over_the_first_variant_is_written_once(tmp_path: Path) -> None:
    found = run([result("vec4", 1e-3, builds_on="naive"), result("naive", 2e-3)])
    text = words(page(found, tmp_path))
    assert (
        "vec4 is fastest at 1.00 ms and wins by 2.00× (1.97 to 2.03×) over naive:" in text
        and "as fast as the first variant" not in text
    )


def test_what_is_not_right_stands_above_with_its_whole_reason(tmp_path: Path) -> None:
    html = page(relu_run(), tmp_path)
    first_ranked, last_ranked = html.index("the vec4 way"), html.rindex("the naive way")
    for reason in (
        "impossible: 1e-06 s",
        "wrong-result: out[7]",
        "typo.cu(12): error: identifier &#34;x&#34; is undefined\n  out[i] = x;\n           ^",
    ):
        assert html.index(reason) < first_ranked
    assert "<details><summary>1 case not supported here</summary>" in html, "that is no fault, and folded away"
    assert html.index("needs compute capability 9.0a") > last_ranked


def test_a_failing_run_says_so_first_and_in_red(tmp_path: Path) -> None:
    html = page(relu_run(), tmp_path)
    names = "<code>relu/racy</code>, <code>relu/typo</code> and <code>relu/cheat</code>"
    failing = f"3 of 9 cases are not right: 1 wrong, 1 failed, 1 invalid ({names})."
    assert f'<p class="summary bad">{failing}</p>' in html and html.count("are not right") == 1, "one problem"
    assert "not right:" not in words(page(run([result("naive", 1e-3)]), tmp_path))
    several = page(run([*relu_run().results, result("naive", 1e-3, problem="(n=7)")]), tmp_path / "several")
    assert '<p class="bad"><a href="#relu-n1000000000">' in several, "and links to where"


def test_one_self_contained_file(tmp_path: Path) -> None:
    html = page(matmul_run((512, 1024)), tmp_path)
    assert (
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">"
    ) in html
    assert "http:" not in html and "https:" not in html and "//fonts" not in html
    tags = Tags(html)
    assert not tags.open
    assert not {"link", "iframe", "object", "img"} & set(tags.tags)
    assert not [value for key, value in tags.attributes if key == "src"]
    assert all((value or "").startswith("#") for key, value in tags.attributes if key in ("href", "xlink:href"))


def test_ids_are_unique_and_every_reference_finds_one(tmp_path: Path) -> None:
    html = page(matmul_run((512, 1024)), tmp_path)
    ids = Tags(html).ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', html)) <= set(ids)
    assert html.count("<svg") > 2


def test_charts_can_be_read_without_eyes_or_mouse(tmp_path: Path) -> None:
    html = page(relu_run(), tmp_path)
    assert re.search(
        r'<svg viewBox="[^"]+" class="chart" role="group" aria-labelledby="(relu-n\d+--chart)-title \1-desc">'
        r'<title id="\1-title">',
        html,
    )
    assert re.search(
        r'class="point" tabindex="0" role="img" aria-label="vec4\[BLOCK=256\]: 2.20 ms \[2.18–2.22 ms\] \(cold L2\)',
        html,
    )
    assert html.count("<caption>") == html.count("<table")
    assert 'scope="col"' in html and 'scope="row"' in html


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    found = run(
        [
            result(
                HOSTILE, 1e-3, flops=10**9, title=HOSTILE, problem=f"(n={HOSTILE})", builds_on=HOSTILE, operator=HOSTILE
            ),
            result("other", 2e-3, flops=10**9, problem=f"(n={HOSTILE})", operator=HOSTILE),
            result(
                "failed",
                status="failed",
                reason=HOSTILE,
                problem=f"(n={HOSTILE})",
                operator=HOSTILE,
                resources={HOSTILE: TAKEN | {"limiter": HOSTILE}},
            ),
            result(HOSTILE, 1e-3, operator="../../relu", problem=HOSTILE),
        ],
        title=HOSTILE,
        suite=HOSTILE,
        command=HOSTILE,
        environment={HOSTILE: HOSTILE, "gpu": HOSTILE},
    )
    found.warnings.append(HOSTILE)
    found.counters[found.results[0].case] = {"dram_bytes": 1e9}
    html = page(found, tmp_path)
    assert html.count("<script") == 1 and html.count("</script") == 1
    tags = Tags(html)
    assert "img" not in tags.tags
    assert not [key for key, _ in tags.attributes if key.startswith("on")]
    assert "&lt;script&gt;" in html


def test_missing_values_are_dashes(tmp_path: Path) -> None:
    html = page(run([result("naive", 1e-3, resources={}, verdict=None)], ceilings={}), tmp_path)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", html.split("Ranking", 1)[1].split("</table>", 1)[0], flags=re.S)
    rank, median, _, rate, *rest = [words(cell).strip() for cell in cells]
    assert (rank, rate) == ("1", "8.00 TB/s") and median.startswith("1.00 ms")
    assert rest == ["–", "–", "–≤ –"], "registers, occupancy, error; a column without any value is not shown"
    assert "so percentages of peak are missing" in html


def test_an_operator_without_flops_is_on_no_flop_roof(tmp_path: Path) -> None:
    html = page(relu_run(), tmp_path)
    assert (
        "Bandwidth of relu" in html and "Roofline" not in html and "FLOP/s" not in html.split("How this was found")[0]
    )
    assert "measured DRAM 4.00 TB/s" in html and "datasheet DRAM 4.80 TB/s" in html


def test_an_operator_with_flops_stands_on_the_roofline(tmp_path: Path) -> None:
    html = page(matmul_run((1024,)), tmp_path)
    assert "Roofline of matmul(m=1024,n=1024,k=1024)" in html
    for words_on_chart in (
        "measured: DRAM 4.00 TB/s, fp32 50.0 TFLOP/s, ridge 12.5 FLOP/B",
        "datasheet: DRAM 4.80 TB/s, fp32 67.0 TFLOP/s",
        "× to the fp32 peak",
        "datasheet tf32",
    ):
        assert words_on_chart in html
    assert "by DRAM traffic that the hardware counted" in html and "DRAM ÷ compulsory" in html and "3.10×" in html


def test_the_arrow_belongs_to_the_best_variant_that_is_no_library(tmp_path: Path) -> None:
    work = {"flops": 10**12, "nbytes": 10**9}
    results = [
        result("cublas", 0.022, library=True, **work),
        result("tiled", 0.04, **work),
        result("naive", 1.0, **work),
    ]
    html = page(run(results), tmp_path)
    assert re.findall(r"([\d.]+× to the \w+ peak)", html) == ["2.00× to the fp32 peak"]
    at_the_roof = page(run([result("tiled", 0.0201, **work)]), tmp_path)
    assert "to the fp32 peak" not in at_the_roof


def test_profiled_variants_have_a_bar_for_each_limit(tmp_path: Path) -> None:
    text = page(matmul_run(), tmp_path)
    assert text.count("Limits of <code>") == text.count('<tr class="first"><th scope="row" class="left">measured') >= 1
    bars = re.search(r"Limits of <code>.*?</details>", text, re.DOTALL)
    assert bars and {"measured", "DRAM", "L2"} <= set(re.findall(r'class="left">([\w ]+)</th>', bars[0]))
    assert "bytes counted; measured peak" in bars[0]


def test_counters_come_with_what_they_exceed(tmp_path: Path) -> None:
    found = matmul_run((1024,))
    for values in found.counters.values():
        values["stall_shares"] = {"selected": 0.6, "barrier": 0.2}
    text = words(page(found, tmp_path)).split("Hardware counters", 1)[1]
    assert "DRAM ÷ compulsory" in text and "3.10×" in text and "61 %" in text
    assert "barrier 20 %" in text and "selected" not in text.split("How this")[0], "to be selected is no stall"


def test_the_page_can_be_filtered(tmp_path: Path) -> None:
    tags = Tags(page(run([result("scalar", 1e-3), result("vec4", 2e-3, problem="(n=7)")]), tmp_path))
    assert ("data-name", "relu(n=7)") in tags.attributes and ("data-anchor", "relu-n7") in tags.attributes
    assert any(name == "data-name" and value.startswith("vec4") for name, value in tags.attributes)
    assert tags.ids.count("filter") == 1 and "filter" not in Tags(page(relu_run(), tmp_path / "one")).ids, "one problem"


def test_a_page_with_a_prediction_says_what_limits_it(tmp_path: Path) -> None:
    found = cpu_run()
    text = words(page(found, tmp_path))
    assert "524 kFLOP · 49.2 kB compulsory · 10.7 FLOP/B" in text
    assert "on a CPU, so nothing was timed" in text


def test_a_library_that_wins_is_called_one(tmp_path: Path) -> None:
    text = words(page(matmul_run((1024,)), tmp_path))
    assert (
        "The library cublas is fastest at 46.7 µs and wins by 32 % (30 to 33 %) over warp_tiled: 92 % of the measured "
        "fp32 rate. warp_tiled, the best without a library, reaches 76 % of cublas: 27.8× as fast as the first variant "
        "naive" in text
    )
    assert "All 22 configs, by variant and tunable" in text and "best config of each variant" in text


def test_ties_are_said(tmp_path: Path) -> None:
    text = words(page(run([result("a", 1.0), result("b", 1.005), result("c", 2.0)]), tmp_path))
    assert "a and b tie as fastest at 1.00 s (their 95 % intervals overlap)" in text
    assert "1=" in text


def test_a_run_without_a_chart_has_bars_at_the_top(tmp_path: Path) -> None:
    bars, caption = winner_bars(sections(rows(matmul_run((512, 1024)))))
    assert len(bars) == 2 and bars[0].length <= bars[1].length <= 1 and caption
    html = page(matmul_run((512, 1024)), tmp_path)
    assert html.index('<figure class="race">') < html.index("<table")
    bars, _ = traffic_bars(sections(rows(read_run(shipped_folder("reports") / "h100/counters-cpu"), "h200")), "H200")
    lengths = [bar.length for bar in bars]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] == 1.0 and {bar.tone for bar in bars} >= {"slow"}
    own = read_run(shipped_folder("reports") / "h100/counters-cpu")
    sentence = costliest_sentence(sections(rows(own, "h200")))
    assert sentence.startswith("The counted traffic of `") and costliest_sentence([]) == ""
    assert winner_bars([]) == traffic_bars([], "H200") == ([], "")


def test_a_cpu_run_shows_no_time(tmp_path: Path) -> None:
    html = page(cpu_run(), tmp_path)
    text = words(html)
    assert "1 of 7 cases is not right: 1 wrong (" in text and "8 cases: 6 right, 1 wrong, 1 unsupported" in text
    assert "All 4 variants are right; times need a GPU; lower bound on an H200: " in text
    assert "1 wrong" in text
    assert "median" not in text and "TB/s" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.S).split("How this")[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html"]
    assert "1,048,576" in text, "threads are counted"


def test_the_first_table_without_a_gpu_tells_small_problems_apart(tmp_path: Path) -> None:
    work = {"backend": "cpu", "operator": "matmul", "resources": {}}
    found = run(
        [
            result("tiled", problem=f"(m={n},n={n},k={n})", flops=2 * n**3, nbytes=12 * n * n, **work)
            for n in (16, 32, 64, 512)
        ],
        backend="cpu",
    )
    table = page(found, tmp_path).split("<tbody>", 1)[1].split("</tbody>", 1)[0]
    bounding = re.findall(r"<strong>(.*?)</strong>", table)
    assert len(set(bounding)) == 4, "by bytes or by FLOPs, not four times the launch of an empty kernel"
    text = words((tmp_path / "report.html").read_text())
    assert "memory alone on H200" in text and "arithmetic alone on H200" in text
    assert (
        f"No kernel takes less than the launch of an empty one, {units.time(committed_ceilings('h200').launch_floor_s)}"
        in text
    )


def test_the_page_says_what_opbench_advise_says(tmp_path: Path) -> None:
    found = run([result("scalar", 3e-3), result("vec4", 2e-3)])
    gain = Gain(1.1, 1.5, 1.9)
    wide = Advice(
        "vectorised_access", "access width", "counted", "4.0 bytes a lane", 0.8, gain, "k.cu", 7, examples=("a/b",)
    )
    advised = CaseAdvice(found.results[1].case, "copy", "(n=1)", 2e-3, 1e-3, (wide,) * 4)
    (first, *_) = write_report(found, tmp_path, advice={advised.case: advised})
    text = words(first.read_text())
    assert "What to do next with vec4" in text
    sentence = "Access width at line 7: load and store 16 bytes per thread (float4). 4.0 bytes a lane (counted)"
    assert text.count(f"{sentence}; gain 1.50× (1.10× to 1.90×); see a/b") == 3, "three at most"
    near = CaseAdvice(advised.case, "copy", "(n=1)", 2e-3, 1.9e-3, reason="it is near its lower bound")
    text = words(write_report(found, tmp_path, advice={near.case: near})[0].read_text())
    assert "No advice on vec4: it is near its lower bound." in text and "What to do next" not in text
    assert "What to do next" not in words(write_report(found, tmp_path)[0].read_text())


def test_warnings_come_with_advice(tmp_path: Path) -> None:
    text = words(page(relu_run(), tmp_path))
    assert "noisy: the median is uncertain by more than 2 %; end other programs that use the GPU" in text


def test_the_commands_repeat_it(tmp_path: Path) -> None:
    html = page(relu_run(), tmp_path)
    assert "opbench run quick --backend cuda --seed 20260" in html
    assert "opbench run quick --backend cuda --seed 20260 --case &#39;relu/vec4[BLOCK=256](n=1000000000)&#39;" in html
    assert "opbench profile &#39;relu/vec4[BLOCK=256](n=1000000000)&#39;" in html


def test_the_page_is_a_function_of_the_run(tmp_path: Path) -> None:
    first, second = (write_report(matmul_run((512, 1024)), tmp_path / name) for name in "ab")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


@pytest.mark.parametrize("results", [
    [], [result("naive", 1e-3)], [result("naive")], [result("naive", 1e-6, flops=10**9)],
    [result("naive", status="failed", reason="no"), result("vec4", status="wrong", reason="no")],
    [result("größer_ß_日本", 1e-3, reason="", title="“Ω” – ünïcode 🚀")],
    [result("naive", 1e-3, nbytes=0)], [result("naive", 1e-3, nbytes=0, flops=10**9)],
    [result("naive", 1e-3, precision="bf16", flops=10**9)],
])  # fmt: skip
@pytest.mark.parametrize("ceilings", [None, {}])
def test_small_and_odd_runs_have_a_page(results: list, ceilings: dict | None, tmp_path: Path) -> None:
    text = words(page(run(results, ceilings=ceilings), tmp_path))
    assert f"{len(results)} case" in text
    if not any(r.status == "right" for r in results) and results:
        assert "No variant is right" in text


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    found = relu_run()
    found.finished = False
    found.header = replace(found.header, cases=99)
    assert "This run did not finish: it holds 10 of 99 cases." in words(page(found, tmp_path))


def test_a_long_run_draws_only_so_many_charts(tmp_path: Path) -> None:
    results = [result(f"v{i % 2}", 1e-3, operator=f"op{i % 3}", problem=f"(n={i // 6})") for i in range(300)]
    html = page(run(results), tmp_path)
    assert html.count("<figure>") <= report.CHARTS + 3
    assert "No chart: a report draws only" in html
    assert len(html) < 1_500_000


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with refuses("unwritable", error=EnvironmentFault):
        write_report(cpu_run(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_an_id_is_made_of_names_and_does_not_shift_when_a_suite_grows(tmp_path: Path) -> None:
    both, alone = matmul_run((512, 1024)), matmul_run((1024,))
    ids = [set(Tags(page(found, tmp_path / name)).ids) for found, name in ((both, "both"), (alone, "alone"))]
    assert all("matmul-m1024-n1024-k1024" in found and "operator-matmul" in found for found in ids)
    twice = run([result("a", 1e-3, problem="(n=1)"), result("a", 1e-3, problem="(n,1)")])
    assert len({anchor for anchor in Tags(page(twice, tmp_path / "twice")).ids if anchor.startswith("relu-")}) >= 2


def test_each_time_has_its_interval_and_samples_in_sight(tmp_path: Path) -> None:
    text = words(page(run([result("steady", 3.9912e-3, half_width=0.0002)]), tmp_path))
    assert "3.990–3.992 ms, n = 40" in text and re.search(r"range 0\.\d+ %", text)


def test_every_config_is_a_row_whose_tunables_are_columns(tmp_path: Path) -> None:
    html = page(matmul_run((1024,)), tmp_path)
    sweep = html.split("Every config of tiled", 1)[1].split("</table>", 1)[0]
    assert ">TILE</button>" in sweep and sweep.count("<tr ") == 3 and "the tiled way" not in sweep
    found = [re.findall(r"<td>(.*?)</td>", row)[:2] for row in re.findall(r"<tr .*?</tr>", sweep, flags=re.S)]
    assert found == [["16", "1.00×"], ["32", "1.14×"], ["8", "1.32×"]]


def test_a_share_above_the_roof_never_stands_alone(tmp_path: Path) -> None:
    work = {"flops": 10**11, "nbytes": 10**6, "flops_are_a_floor": False}
    html = page(run([result("fft", 1e-3, **work), result("naive", 9e-3, **work)]), tmp_path)
    text = words(html)
    assert "fft at 200 % of peak: FLOPs are counted by the textbook algorithm" in text
    assert html.count(f'<sup title="{AbovePeak.FEWER_FLOPS}">1</sup>') == 1
    odd = page(run([result("skips", 1e-3, flops=10**11, nbytes=10**6)]), tmp_path)
    assert '<div class="sub short flag">impossible: faster than the measured peaks allow</div>' in odd
    assert "is less than the measured peaks allow" in words(odd)
