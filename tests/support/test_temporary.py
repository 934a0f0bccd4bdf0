"""Nothing stays in the temporary folder of the machine: what a killed process leaves is in a folder of the tests."""

from pathlib import Path

from support.programs import program, python


def test_a_process_of_a_test_has_its_temporary_files_where_the_tests_have_theirs(tmp_path_factory):
    for run in (python, program):
        left = run("import tempfile; print(tempfile.mkdtemp())").stdout.strip()
        assert Path(left).is_relative_to(tmp_path_factory.getbasetemp())
