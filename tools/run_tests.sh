#!/bin/sh
# Runs the tests of a build: tools/run_tests.sh BUILD [FOLDER...]      (folders of tests/; none: all)
# Fetches the demo model when golden or cli tests are among them. Last line: N passed, N failed, N skipped.
set -eu
build=$1
shift
case " $* " in
"  " | *" golden "* | *" cli "*)
    SLUICE_DEMO_MODEL=${SLUICE_DEMO_MODEL:-$(tools/get_model.sh)}
    export SLUICE_DEMO_MODEL
    ;;
esac
exec python3 tools/run_tests.py "$build" "$@"
