"""Renders the chats of cases.json with templates as Hugging Face's transformers does: render.py DATES CASES TEMPLATE...

DATES is "now", or "formats": strftime_now returns its format. Prints a list of texts for each template. null: the template raises an error."""
import datetime
import json
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form) if sys.argv[1] == "now" else f"<{form}>"


def render(template, case):
    case = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **case, **case.get("variables", {})}
    try:
        return template.render(**case)
    except Exception:
        return None


with open(sys.argv[2]) as f:
    cases = json.load(f)
results = []
for path in sys.argv[3:]:
    with open(path) as f:
        template = env.from_string(f.read())
    results.append([render(template, c) for c in cases])
print("[\n" + ",\n".join("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in t) + "\n]" for t in results) + "\n]")
