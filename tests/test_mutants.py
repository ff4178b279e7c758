"""The faults that mutation testing injects are faults: the module reads otherwise, and still compiles."""

import ast

import mutants


def test_every_pattern_of_an_area_names_modules() -> None:
    assert not [
        pattern for patterns in mutants.AREAS.values() for pattern in patterns if not [*mutants.ROOT.glob(pattern)]
    ]


def test_an_injected_fault_changes_its_module_and_tests_reach_it() -> None:
    for mutant in mutants.draw_mutants(24, 0, ""):
        original = ast.unparse(ast.parse((mutants.ROOT / mutant.path).read_text()))
        mutated = ast.unparse(mutants.mutated_source(mutant))
        assert mutated != original, mutant
        compile(mutated, mutant.path, "exec")
        assert mutants.ANSWERS in mutants.tests_of(mutant)
