"""What the tools print, in the documented format: banners, units rows, thousands separators, gaps."""

from __future__ import annotations

import pytest

from opbench.errors import EnvironmentFault
from opbench.insight.nsight import metrics
from opbench.insight.nsight.parse import cell_number, read_ncu, read_nsys, unit_factor
from support.checks.errors import refuses

COLUMNS = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
    '"Block Size","Grid Size","Device","CC"'
)
NVTX = (
    '"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg","Id:Domain:Start/Stop_Range:PL_Type"'
)
RAW = f"""==PROF== Connected to process 4711 (/usr/bin/python3.12)
the program's own words, with "quotes", and commas
==PROF== Disconnected from process 4711
==WARNING== Launch context 1 has no sections
{COLUMNS},{NVTX},"dram__bytes.sum","gpu__time_duration.sum","lts__t_bytes.sum","sm__cycles_elapsed.avg.per_second",\
"sm__warps_active.avg.pct_of_peak_sustained_active","smsp__average_warp_latency_per_inst_issued.ratio",\
"smsp__inst_executed.sum"
"","","","","","","","","","","","","","byte","ns","byte","hz","%","cycle","inst"
"0","4711","python3","box","split_k(const float *, float *, int)","1","7","(256, 1, 1)","(16, 4, 1)","0","9.0",\
"4711  ""opbench:a.b:none:none:RGB:0xff009e73:REGISTERED:a.b"" ","",\
"1,048,576.50","12,345","2,097,152","1,980,000,000","62.5","nan","1,000"
"1","4711","python3","box","void reduce<(int)2>(T1 *)","1","7","(128, 1, 1)","(8, 1, 1)","0","9.0",\
"4711  ""opbench:a.b:none:none:RGB:0xff009e73:REGISTERED:a.b"" ","",\
"1,024","655","n/a","1,500,000,000","25","(!) n/a","0"
"""


def test_two_kernels_with_every_oddity() -> None:
    first, second = read_ncu(RAW)
    assert first.name == "split_k(const float *, float *, int)" and second.name == "void reduce<(int)2>(T1 *)"
    assert (first.grid, first.block, first.compute_capability) == ("(16, 4, 1)", "(256, 1, 1)", "9.0")
    assert first.get("dram__bytes.sum") == 1048576.5
    assert first.get(metrics.TIME) == pytest.approx(12.345e-6)
    assert first.get(metrics.OCCUPANCY) == pytest.approx(0.625)
    assert first.get(metrics.LATENCY) is None
    assert second.get("lts__t_bytes.sum") is None
    assert second.get("l1tex__t_bytes.sum") is None


def test_their_sums() -> None:
    figures = metrics.derive(read_ncu(RAW))
    assert figures["time_s"] == pytest.approx(13e-6)
    assert figures["dram_bytes"] == 1049600.5
    assert figures["l2_bytes"] is None and figures["l1_bytes"] is None and figures["flops"] is None
    assert figures["sm_clock_hz"] == pytest.approx((1.98e9 * 12.345 + 1.5e9 * 0.655) / 13)


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("ns", 1e-9), ("nsecond", 1e-9), ("us", 1e-6), ("usecond", 1e-6), ("msecond", 1e-3), ("second", 1), ("s", 1),
     ("hz", 1), ("Ghz", 1e9), ("Mhz", 1e6), ("cycle/nsecond", 1e9), ("cycle/second", 1), ("cycle/usecond", 1e6),
     ("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("MB", 1e6), ("Gbyte", 1e9), ("byte/second", 1),
     ("Gbyte/second", 1e9), ("%", 0.01), ("inst", 1), ("sector/request", 1), ("warp", 1), ("", 1)],
)  # fmt: skip
def test_units_of_all_releases(unit: str, factor: float) -> None:
    assert unit_factor(unit) == pytest.approx(factor)


@pytest.mark.parametrize("text", ["", "n/a", "(!) n/a", "nan", "inf", "-inf", "no data"])
def test_gaps_are_missing_and_never_zero(text: str) -> None:
    assert cell_number(text) is None


def test_numbers_with_separators() -> None:
    assert cell_number(" 1,234,567.5 ") == 1234567.5 and cell_number("0") == 0 and cell_number("1e+06") == 1e6


def test_without_a_units_row_the_numbers_stand_as_they_are() -> None:
    text = f'{COLUMNS},"gpu__time_duration.sum"\n"0","1","p","h","k","1","7","(1, 1, 1)","(1, 1, 1)","0","8.0","3"\n'
    assert read_ncu(text)[0].get(metrics.TIME) == 3


def test_no_table_is_a_fault() -> None:
    with refuses("no-table", "ncu", error=EnvironmentFault):
        read_ncu("==ERROR== Failed to open the report\n")


def test_a_torn_row_is_a_fault_and_no_smaller_sum() -> None:
    with refuses("torn-table", "ncu", error=EnvironmentFault):
        read_ncu(RAW.rsplit(",", 3)[0] + "\n")


def test_a_table_without_kernels_is_empty() -> None:
    assert read_ncu(RAW[: RAW.index('"0","4711"')]) == []


STATS = """Generating SQLite file run.sqlite from run.nsys-rep
Processing [run.sqlite] with [/opt/nsys/reports/cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
90.0,"1,800",2,900.0,900.0,880,920,28.3,"void split_k<(int)2>(const float *, float *)"
10.0,200,1,200.0,200.0,200,200,0.0,reduce

Processing [run.sqlite] with [/opt/nsys/reports/nvtx_gpu_proj_sum.py]...
Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),Total GPU Ops
opbench:a.b.x-1,PushPop,2100,50000,1,2100.0,3
opbench:profile,PushPop,,60000,1,,0

"""


def test_nsys_stats() -> None:
    timeline = read_nsys(STATS)
    assert [k.name for k in timeline.kernels] == ["void split_k<(int)2>(const float *, float *)", "reduce"]
    assert timeline.kernels[0].instances == 2
    assert timeline.kernels[0].total_s == pytest.approx(1.8e-6)
    assert timeline.kernels[0].median_s == pytest.approx(0.9e-6)
    assert timeline.ranges == {"opbench:a.b.x-1": pytest.approx(2.1e-6)}


def test_nsys_without_kernels() -> None:
    assert read_nsys("SKIPPED: run.sqlite does not contain CUDA kernel data.\n").kernels == []
