#!/bin/sh
# The main job from nothing: packages, build, model, and a text whose cache (93 MB in Q8_0) does not fit the
# memory it may use: 160 MiB, of which the packed weights take most. DOC=path takes another text, MODEL=path
# another model, QUESTION=text another question.
set -eu
doc=${DOC:-/usr/share/common-licenses/GPL-3}
question=${QUESTION:-Who published this license?}

groups=build
tools/get_model.sh --here || groups="build model"
tools/setup.sh $groups
if [ ! -r "$doc" ]; then
    echo "sluice: $doc is not here; DOC=path names another text" >&2
    exit 1
fi
tools/build.sh "${BUILD:-build}" sluice
model=$(tools/get_model.sh)
set -- "${BUILD:-build}/sluice" run -m "$model" -f "$doc" --chat -p "$question" -n 64 --ram 160M --kv q8_0
echo "\$ $1 run -m $model -f $doc --chat -p \"$question\" -n 64 --ram 160M --kv q8_0"
exec "$@"
