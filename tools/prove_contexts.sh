#!/bin/sh
# The long forms of the tests of contexts that survive: tools/prove_contexts.sh BUILD [STEP...]      (none: all)
# One after another; on two slow processors about an hour. Each prints PASS or FAIL for each case, and its seconds; the
# last line says how many steps failed. Needs the demo model, and the right to mount for `full` and `fork`.
set -u
build=$1
shift
SLUICE_DEMO_MODEL=${SLUICE_DEMO_MODEL:-$(tools/get_model.sh)}
export SLUICE_DEMO_MODEL
failed=0

step() {
    name=$1
    shift
    case " $chosen " in
    *" $name "*) ;;
    *) return ;;
    esac
    begun=$(date +%s)
    echo "== $name: $*"
    env "$@" || failed=$((failed + 1))
    echo "== $name: $(($(date +%s) - begun)) s"
}

chosen=${*:-full crash append fork repair flips restored secrets large}
step full SLUICE_TEST_POINTS=50 python3 tests/cli/run_full_disk.py "$build"
step crash SLUICE_TEST_KILLS=200 python3 tests/cli/run_crash.py "$build"
step append SLUICE_TEST_KILLS=200 python3 tests/cli/run_append.py "$build" kills
step fork SLUICE_TEST_KILLS=200 python3 tests/cli/run_fork.py "$build" kills
step repair SLUICE_TEST_KILLS=200 python3 tests/cli/run_repair.py "$build" kills
step flips SLUICE_TEST_FLIPS=1000 python3 tests/cli/run_repair.py "$build" flips
step restored SLUICE_TEST_TEXTS=50 python3 tests/cli/run_restored.py "$build"
step secrets python3 tests/cli/run_secrets.py "$build"
case " $chosen " in
*" large "*) [ -x "$build/tests/prop/test_large_files" ] || cmake --build "$build" --target test_large_files ;;
esac
step large "$build/tests/prop/test_large_files"
echo "$failed steps failed"
[ "$failed" -eq 0 ]
