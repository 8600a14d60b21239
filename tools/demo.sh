#!/bin/sh
# The main job from nothing: packages, build, model, and a text whose cache (90 MiB in Q8_0) does not fit the memory it
# may use: 160 MiB, of which the packed weights take most. The first run reads the text into a context file, which is
# kept: a later run answers another question without reading it again. DOC=path takes another text, MODEL=path another
# model, QUESTION=text another question; DEMO_CONTEXT=path keeps the context elsewhere than in
# ${XDG_CACHE_HOME:-~/.cache}/sluice/, where its name is the model's and the text's.
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
sluice=${BUILD:-build}/sluice
context=${DEMO_CONTEXT:-}
if [ -z "$context" ]; then
    cache=${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/sluice
    mkdir -p "$cache"
    name=${model##*/}
    context=$cache/${name%.gguf}-${doc##*/}.kv
fi

echo "\$ $sluice prefill -m $model -f $doc --chat -o $context --replace --ram 160M"
"$sluice" prefill -m "$model" -f "$doc" --chat -o "$context" --replace --ram 160M
echo "\$ $sluice run -m $model -c $context --chat -p \"$question\" -n 64 --ram 160M"
exec "$sluice" run -m "$model" -c "$context" --chat -p "$question" -n 64 --ram 160M
