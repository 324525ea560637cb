"""The table of features in docs/targets.md: each tick names a test; on GPUs, one on a card."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Beginning of a row -> the tests of its ticks, from left to right: of tests/unit for the CPU, else
# of tests/gpu. "*": the test before is of this target, too.
TESTS = {
    "every mask": "runtime_parts::test_both_passes simt::test_random_masks "
                  "sm80::test_random_masks sm90a::test_random_masks",
    "bf16, fp16": "half_gradients::test_within_twice_the_error_of_pytorch "
                  "simt::test_head_dimensions sm80::test_head_dims "
                  "sm90a::test_head_dims_and_lengths",
    "fp32": "cpu_template::test_head_dimensions simt::test_head_dimensions",
    "[E4M3]": "fp8::test_masks",
    "head dimensions": "",
    "D 576": "cpu_template::test_head_dimensions sm80::test_heads_packed_for_decoding",
    "Dv different": "cpu_template::test_head_dimensions targets::test_widths * *",
    "your own `tile=`": "tile_overrides::test_both_passes_on_the_cpu "
                        "targets::test_tiles_of_ones_own *",
    "grouped-query": "cpu_template::test_features simt::test_features sm80::test_random_masks "
                     "sm90a::test_features",
    "bitwise": "cpu_template::test_threads_do_not_change_bits "
                     "simt::test_the_same_bits_on_every_run",
    "alpha-entmax": "entmax::test_lengths simt::test_entmax sm80::test_entmax "
                    "entmax_hopper::test_masks",
    "[score formulas]": "scores::test_formulas targets::test_formulas_with_tables * *",
    "dropout": "dropout::test_both_passes scores::test_data_on_the_device * *",
    "dilated": "runtime_parts::test_both_passes targets::test_residue_classes * *",
    "NATTEN": "sm90a_grid::test_both_passes",
    "tiles of 64": "sm90a_short::test_short_rows_take_small_tiles",
    "long rows": "sm90a_split::test_long_rows_among_short_ones",
    "scattered": "runtime_listed::test_both_passes scores::test_parts_over_listed_tokens * "
                 "sm90a_listed::test_both_passes",
    "block lists": "data_lists::test_other_targets * *",
    "[paged KV cache]": "paged::test_masks_on_the_cpu paged::test_pages *",
    "[JAX:": "jax::test_both_passes *",
    "`topk` of blocks": "runtime_selecting::test_scores_by_their_definitions "
                        "targets::test_chosen_keys *",
    "`topk` of single": "runtime_selecting::test_few_all_and_more_than_all "
                        "targets::test_chosen_keys *",
    "torch autograd": "torch_doors::test_gradients targets::test_in_one_graph * *",
    "one sequence": "distributed_attention::*",
}  # fmt: skip


def rows():
    """Return the rows of the table: its first cell, and the cells of the targets."""
    text = (ROOT / "docs/targets.md").read_text("utf-8").partition("## Features")[2]
    text = text.partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [(row[0].strip(), [cell.strip() for cell in row[1:]]) for row in lines[2:]]


@pytest.mark.parametrize(("name", "cells"), rows())
def test_each_tick_has_a_test(name, cells):
    (key,) = (key for key in TESTS if name.startswith(key))
    tests, file, function = TESTS[key].split(), "", ""
    ticks = [number for number, cell in enumerate(cells) if cell.startswith("✓")]
    if "NCCL" in cells[-1]:
        ticks.remove(len(cells) - 1)  # of several cards: `python -m benchmarks` checks its results
    assert len(tests) == len(ticks)
    for number, test in zip(ticks, tests, strict=True):
        file, function = (file, function) if test == "*" else test.split("::")
        folder = "gpu" if number else "unit"
        definition = re.search(
            rf"^def {function.replace('*', 'test_')}",
            (ROOT / f"tests/{folder}/test_{file}.py").read_text(),
            re.MULTILINE,
        )
        assert definition, test
