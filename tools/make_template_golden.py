#!/usr/bin/env python3
"""Conversations as real Jinja renders them: what tests/golden/test_templates.c compares with.

    make_template_golden.py GOLDEN                      the short templates below, one of each family
    make_template_golden.py GOLDEN --templates FOLDER   every *.jinja of a folder (published ones); those of no known
                                                        family are to be refused

Conversations of one to five turns, with and without a system message. Jinja is set up as Hugging Face's transformers
do (trim_blocks, lstrip_blocks, raise_exception), without strftime_now where no system message is given, so that
templates fall back to a fixed date or fail (and are left out).
GOLDEN is a list of records; tests/golden/README.md describes it. Needs the PyPI package jinja2.
"""
import argparse
import pathlib
import re

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

SYSTEM = "You are  terse.\nVery."
USERS = ["Who is the narrator?", "And who\nelse is there?  Two spaces.", "Où ça?", "\"Why\", {{ x }}?", "Bye."]
ANSWERS = ["A mouse.", "Nobody.\n\nNobody at all.", "Là-bas.", "Because.", "Bye!"]

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
          "+ '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
ROLES = "{% for message in messages %}{% if message['role'] == 'user' %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system messages') }}{% endif %}"
INST = ("{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
        "{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for message in rest %}"
        "{% if message['role'] == 'user' %}")
# Templates of our own, in the words of each family's.
SHORT = {
    "chatml": CHATML,
    "chatml ": ("{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are of use.<|im_end|>\\n' }}"
                "{% endif %}" + CHATML),
    "llama3": ("{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n'"
               " + m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
               "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"),
    "llama3.1": ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
                 "{% set system = messages[0]['content'] | trim %}"
                 "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
                 "{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
                 "{{ 'Cutting Knowledge Date: December 2023\\n' }}"
                 "{{ 'Today Date: 26 Jul 2024\\n\\n' + system + '<|eot_id|>' }}"
                 "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n'"
                 " + m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
                 "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"),
    "gemma": ("{{ bos_token }}" + NO_SYSTEM + "{% for m in messages %}{{ '<start_of_turn>' + "
              "(m['role'] if m['role'] == 'user' else 'model') + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}"
              "{% endfor %}{% if add_generation_prompt %}"
              "{{ '<start_of_turn>model\\n' }}{% endif %}"),
    "gemma3": ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
               "{% set first_user_prefix = messages[0]['content'] + '\\n\\n' %}{% set messages = messages[1:] %}"
               "{% else %}{% set first_user_prefix = '' %}{% endif %}"
               "{% for m in messages %}{{ '<start_of_turn>' + (m['role'] if m['role'] == 'user' else 'model') + '\\n'"
               " }}{% if loop.first %}{{ first_user_prefix }}{% endif %}{{ m['content'] | trim + '<end_of_turn>\\n' }}"
               "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"),
    "llama2": (INST.replace("{{ bos_token }}", "") +
               "{% if loop.first and system %}{{ bos_token + '[INST] ' + ('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n'"
               " + message['content']).strip() + ' [/INST]' }}{% else %}{{ bos_token + '[INST] ' + "
               "message['content'].strip() + ' [/INST]' }}{% endif %}{% else %}{{ ' ' + message['content'].strip() + "
               "' ' + eos_token }}{% endif %}{% endfor %}"),
    "mistral-v0": ("{{ bos_token }}" + NO_SYSTEM + ROLES + "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
                   "{{ message['content'] + eos_token }}{% endif %}{% endfor %}"),
    "mistral-v1": (INST + "{% if loop.first and system %}{{ ' [INST] ' + system + '\\n\\n' + message['content'] + "
                   "' [/INST]' }}{% else %}{{ ' [INST] ' + message['content'] + ' [/INST]' }}{% endif %}{% else %}"
                   "{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"),
    "mistral-v3": (INST + "{# [AVAILABLE_TOOLS] #}{% if loop.first and system %}{{ \"[INST] \" + system + '\\n\\n' + "
                   "message['content'] + \"[/INST]\" }}{% else %}{{ \"[INST] \" + message['content'] + \"[/INST]\" }}"
                   "{% endif %}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"),
    "mistral-v3-tekken": (INST + "{# [AVAILABLE_TOOLS] #}{% if loop.first and system %}{{ \"[INST]\" + system + "
                          "'\\n\\n' + message['content'] + \"[/INST]\" }}{% else %}{{ \"[INST]\" + "
                          "message['content'] + "
                          "\"[/INST]\" }}{% endif %}{% else %}{{ message['content'] + eos_token }}{% endif %}"
                          "{% endfor %}"),
    "mistral-v7": ("{{ bos_token }}" + ROLES + "{{ '[INST] ' + message['content'] + '[/INST]' }}{% elif "
                   "message['role'] == 'system' %}{{ '[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }}"
                   "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"),
    "smollm3": ("{{ '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}{% set own = "
                "messages[0].content.rstrip() %}{% endif %}{{ '## Metadata\\n\\nKnowledge Cutoff Date: June 2025\\n' }}"
                "{{ 'Reasoning Mode: /think\\n\\n' }}{{ '## Custom Instructions\\n\\n' }}{% if own %}{{ own + '\\n\\n' }}"
                "{% else %}{{ 'You are a helpful AI assistant named SmolLM, of use.\\n\\n' }}{% endif %}"
                "{{ '<|im_end|>\\n' }}{% for m in messages %}{% if m.role != 'system' %}{{ '<|im_start|>' + m.role + "
                "'\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
                "{{ '<|im_start|>assistant\\n' }}{% endif %}"),
    "mistral-v7-tekken ": ("{%- set today = strftime_now(\"%d %B\") %}{%- set default_system_message = 'Of use on ' + "
                           "today + '.' %}{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
                           "{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}"
                           "{% set system = default_system_message %}{% set rest = messages %}{% endif %}"
                           "{{ '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}{% for m in rest %}"
                           "{% if m['role'] == 'user' %}{{ '[INST]' + m['content'] + '[/INST]' }}{% else %}"
                           "{{ m['content'] + eos_token }}{% endif %}{% endfor %}"),
    "mistral-v7-tekken": ("{{ bos_token }}" + ROLES + "{{ '[INST]' + message['content'] + '[/INST]' }}{% elif "
                          "message['role'] == 'system' %}{{ '[SYSTEM_PROMPT]' + message['content'] + "
                          "'[/SYSTEM_PROMPT]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"),
    "phi3": ("{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{# system #}"),
    "phi4": ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '<|im_sep|>' + m['content'] + '<|im_end|>' }}"
             "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
             "{# system #}"),
    "phi4-mini": ("{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
                  "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"),
    "zephyr": ("{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + "
               "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{# <|user|> #}"),
    "glm4": ("[gMASK]<sop>{% for item in messages %}<|{{ item['role'] }}|>\n{{ item['content'] }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"),
    "deepseek-v3": ("{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}{% elif "
                    "m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}{% else %}{{ '<｜Assistant｜>' + m['content']"
                    " + eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}"
                    "{% endif %}"),
}
# How an answer looks in the text where that is not what the model said.
SAID = {"llama2": " %s ", "mistral-v1": " %s", "mistral-v3": " %s", "mistral-v7": " %s"}
MARKS = ["<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
         "<start_of_turn>", "<end_of_turn>", "<|end|>", "[gMASK]", "<sop>", "<｜User｜>", "<｜Assistant｜>", "<think>",
         "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]"]
BRACKETS = ["[INST]", "[/INST]"]  # text in the older ones
ROLE_MARKS = ["<|system|>", "<|user|>", "<|assistant|>"]  # text in Zephyr's


def render(template, messages, bos, eos):
    def refuse(text):
        raise jinja2.TemplateError(text)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.globals["raise_exception"] = refuse
    if messages[0]["role"] == "system" and not re.search("strftime_now is (not )?defined", template):
        env.globals["strftime_now"] = lambda form: "today"  # which such templates call, and do not write
    return env.from_string(template).render(messages=messages, bos_token=bos, eos_token=eos,
                                            add_generation_prompt=True)


def marks_of(template, family):
    plain = "<|end|>" not in template and "[gMASK]" not in template
    marks = [m for m in MARKS if m in template]
    marks += [] if family in ("llama2", "mistral-v0", "mistral-v1") else [m for m in BRACKETS if m in template]
    return marks + ([] if plain else ROLE_MARKS)


def put(out, key, text):
    data = text.encode()
    out.write(f"{key} {len(data)}\n".encode() + data + b"\n")


def record(out, name, template, family):
    """One template and its conversations; those that Jinja refuses are left out."""
    bos, eos = ("<|bos|>", "<|eos|>") if "im_start" in template else ("<s>", "</s>")
    if "<｜User｜>" in template:
        bos, eos = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    put(out, "name", name)
    put(out, "template", template)
    put(out, "bos", bos)
    put(out, "eos", eos)
    if family == "glm4":
        put(out, "eot", "<|user|>")
    for mark in marks_of(template, family):
        put(out, "mark", mark)
    n_texts = 0
    for n_turns in range(1, 6):
        for system in (None, SYSTEM):
            messages = [{"role": "system", "content": system}] if system else []
            for i in range(n_turns):
                messages.append({"role": "user", "content": USERS[i]})
                if i + 1 < n_turns:
                    messages.append({"role": "assistant", "content": ANSWERS[i]})
            try:
                text = render(template, messages, bos, eos)
            except (jinja2.TemplateError, TypeError) as why:
                print(f"{name}: {n_turns} turns, {'a' if system else 'no'} system message: {why}")
                continue
            if system:
                put(out, "system", system)
            for i in range(n_turns):
                put(out, "user", USERS[i])
                if i + 1 < n_turns:
                    put(out, "answer", SAID.get(family, "%s") % ANSWERS[i])
            put(out, "text", text)
            n_texts += 1
    put(out, "end", "")
    print(f"{name}: {n_texts} conversations")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("golden")
    parser.add_argument("--templates", metavar="FOLDER")
    args = parser.parse_args()
    with open(args.golden, "wb") as out:
        if not args.templates:
            for family, template in SHORT.items():
                record(out, family.strip(), template, family.strip())
            return
        for path in sorted(pathlib.Path(args.templates).glob("*.jinja")):
            text = path.read_text(encoding="utf-8")
            family = next((f for f, sign in (("mistral-v7", r"\[SYSTEM_PROMPT\] "), ("llama2", r"<<SYS>>"),
                                             ("mistral-v1", r"' \[INST\] '"),
                                             ("mistral-v0", r"'\[INST\] '"), ("mistral-v3", r'"\[INST\] "'),
                                             ("glm4", r"\[gMASK\]<sop>")) if re.search(sign, text)), "")
            record(out, path.name, text, family)


if __name__ == "__main__":
    main()
