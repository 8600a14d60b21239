#!/bin/sh
# The long forms of the tests that drafts change nothing: tools/prove_speculation.sh BUILD [STEP...]      (none: all)
# tiny: 200 prompts of a small model in the program's own memory, bits of logits, keys and values compared. demo: the
# same 200 prompts of the demo model from outside, four ways each of drafting beside plain decoding, every fifth with a
# cache in F16. On a quiet machine of two processors about 20 minutes. The last line says how many steps failed.
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

chosen=${*:-tiny demo}
step tiny SLUICE_TEST_PROMPTS=200 "$build/tests/prop/test_speculation"
step demo SLUICE_TEST_PROMPTS=200 python3 tests/cli/run_speculation.py "$build"
echo "$failed steps failed"
[ "$failed" -eq 0 ]
