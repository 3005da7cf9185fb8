package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
)

// Names of variables that rewritten templates read.
const (
	textName   = "goddp_text_"
	beginName  = "goddp_begin"
	endName    = "goddp_end"
	filterName = "goddp_" // with the name of the filter
	printName  = filterName + "string"
)

// Characters of Unicode that no text has. They mark generation blocks.
const beginMark, endMark = "\uFDD0", "\uFDD1"

// A tag is {{ }}, {% %} or {# #}, whose sides may have the sign - or +.
type tag struct {
	kind        byte // '{', '%' or '#'
	left, right byte // '-', '+' or 0
	body        string
}

var (
	filter = regexp.MustCompile(`\|\s*(tojson|string)\b`)
	endRaw = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*([-+]?)%\}`)
)

// rewrite returns a template of the same meaning for the library that executes it, and the variables that it reads.
//
// The library removes white space before a tag even if another tag is between them, writes indented JSON with sorted
// keys, writes none as nothing and 1.0 as 1, and lacks generation blocks. So rewrite removes white space by Jinja's rules, replaces
// the texts between tags, which the library would trim again, by variables, and calls functions of this package.
func rewrite(source string) (string, map[string]jinja.Value, error) {
	values := map[string]jinja.Value{
		beginName:             jinja.NewString(beginMark),
		endName:               jinja.NewString(endMark),
		printName:             jinja.NewCallable("string", printed),
		filterName + "tojson": jinja.NewCallable("tojson", toJSON),
	}
	var out strings.Builder
	texts := 0
	text := func(s string) {
		if s != "" {
			name := textName + strconv.Itoa(texts)
			texts++
			values[name] = jinja.NewString(s)
			out.WriteString("{{ " + name + " }}")
		}
	}
	source = strings.TrimSuffix(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source), "\n")
	lineStart := true // what follows begins a line
	for source != "" {
		at := tagStart(source)
		before := source[:at]
		if at == len(source) {
			text(before)
			break
		}
		t, rest, err := readTag(source[at:])
		if err != nil {
			return "", nil, err
		}
		text(trimBefore(before, t.kind, t.left, lineStart))
		source, lineStart = trimAfter(rest, t.kind, t.right)
		switch {
		case t.kind == '#':
		case t.kind == '{':
			out.WriteString("{{ " + printName + "(" + filter.ReplaceAllString(t.body, "| "+filterName+"$1") + ") }}")
		case t.body == "generation":
			out.WriteString("{{ " + beginName + " }}")
		case t.body == "endgeneration":
			out.WriteString("{{ " + endName + " }}")
		case t.body == "raw":
			m := endRaw.FindStringSubmatchIndex(source)
			if m == nil {
				return "", nil, errors.New("{% raw %} without {% endraw %}")
			}
			sign := func(i int) byte { return (source[m[i]:m[i+1]] + "\x00")[0] }
			text(trimBefore(source[:m[0]], '%', sign(2), lineStart))
			source, lineStart = trimAfter(source[m[1]:], '%', sign(4))
		default:
			out.WriteString("{% " + filter.ReplaceAllString(t.body, "| "+filterName+"$1") + " %}")
		}
	}
	return out.String(), values, nil
}

// tagStart returns the index of the first tag, or the length of source.
func tagStart(source string) int {
	for i := 0; i+1 < len(source); i++ {
		if source[i] == '{' && strings.IndexByte("{%#", source[i+1]) >= 0 {
			return i
		}
	}
	return len(source)
}

// readTag reads the tag at the start of source.
func readTag(source string) (t tag, rest string, err error) {
	t.kind = source[1]
	end := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[t.kind]
	depth := 0 // of braces in an expression
	var quote byte
	for i := 2; i < len(source); i++ {
		c := source[i]
		switch {
		case quote != 0 && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case t.kind != '#' && (c == '\'' || c == '"'):
			quote = c
		case t.kind != '#' && c == '{':
			depth++
		case t.kind != '#' && c == '}' && depth > 0:
			depth--
		case strings.HasPrefix(source[i:], end):
			t.body, rest = source[2:i], source[i+2:]
			if t.body != "" && (t.body[0] == '-' || t.body[0] == '+') {
				t.left, t.body = t.body[0], t.body[1:]
			}
			if n := len(t.body); n > 0 && (t.body[n-1] == '-' || t.body[n-1] == '+') {
				t.right, t.body = t.body[n-1], t.body[:n-1]
			}
			t.body = strings.TrimSpace(t.body)
			return t, rest, nil
		}
	}
	return t, "", fmt.Errorf("%.20q... does not end", source)
}

// trimBefore removes white space at the end of the text before a tag: all of it for the sign -, and the indentation
// of a statement or a comment that begins a line.
func trimBefore(text string, kind, sign byte, lineStart bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, unicode.IsSpace)
	case sign == '+' || kind == '{':
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || lineStart) && strings.TrimSpace(text[line:]) == "" {
		return text[:line]
	}
	return text
}

// trimAfter removes white space after a tag: all of it for the sign -, and one end of a line after a statement or a
// comment. lineStart says that a line ended.
func trimAfter(text string, kind, sign byte) (rest string, lineStart bool) {
	switch {
	case sign == '-':
		rest = strings.TrimLeftFunc(text, unicode.IsSpace)
	case sign == '+' || kind == '{':
		return text, false
	default:
		rest = strings.TrimPrefix(text, "\n")
	}
	return rest, strings.HasSuffix(text[:len(text)-len(rest)], "\n")
}

// printed returns what Jinja writes for a value. It is the filter string too.
func printed(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 {
		return jinja.Undefined(), fmt.Errorf("want one expression in {{ }}, got %d", len(args))
	}
	if v := args[0]; v.IsNone() {
		return jinja.NewString("None"), nil
	} else if v.IsFloat() {
		return jinja.NewString(float(v.AsFloat())), nil
	}
	return args[0], nil
}

// float returns a number as Python writes it.
func float(f float64) string {
	s := strconv.FormatFloat(f, 'g', -1, 64)
	if exp := strings.IndexByte(s, 'e'); exp >= 0 {
		if e, _ := strconv.Atoi(s[exp+1:]); e >= -4 && e < 16 {
			s = strconv.FormatFloat(f, 'f', -1, 64)
		}
	}
	if !strings.ContainsAny(s, ".en") {
		s += ".0"
	}
	return s
}

// toJSON is the filter tojson of transformers, which is Python's json.dumps without ensure_ascii.
func toJSON(args []jinja.Value, options map[string]jinja.Value) (jinja.Value, error) {
	w := jsonWriter{item: ", ", key: ": "}
	if v, ok := options["indent"]; ok && v.IsInt() {
		w.indent, w.item = "\n"+strings.Repeat(" ", int(v.AsInt())), ","
	}
	if v, ok := options["ensure_ascii"]; ok {
		w.ascii = v.IsTruthy()
	}
	if v, ok := options["separators"]; ok && v.IsList() && v.AsList().Len() == 2 {
		w.item, w.key = v.AsList().Get(0).AsString(), v.AsList().Get(1).AsString()
	}
	err := w.write(args[0], 0)
	return jinja.NewString(w.String()), err
}

type jsonWriter struct {
	strings.Builder
	indent    string // the line end and one level of indentation; "": one line
	item, key string // separators
	ascii     bool
}

func (w *jsonWriter) write(v jinja.Value, depth int) error {
	line := func(depth int) {
		if w.indent != "" {
			w.WriteString("\n" + strings.Repeat(w.indent[1:], depth))
		}
	}
	switch {
	case v.IsNone():
		w.WriteString("null")
	case v.IsBool():
		w.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		w.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		w.WriteString(float(v.AsFloat()))
	case v.IsString():
		w.text(v.AsString())
	case v.IsList():
		w.WriteByte('[')
		for i, item := range v.AsList().Items {
			if i > 0 {
				w.WriteString(w.item)
			}
			line(depth + 1)
			if err := w.write(item, depth+1); err != nil {
				return err
			}
		}
		if v.AsList().Len() > 0 {
			line(depth)
		}
		w.WriteByte(']')
	case v.IsDict():
		w.WriteByte('{')
		dict := v.AsDict()
		for i, key := range dict.Keys {
			if i > 0 {
				w.WriteString(w.item)
			}
			line(depth + 1)
			w.text(key)
			w.WriteString(w.key)
			if err := w.write(dict.Data[key], depth+1); err != nil {
				return err
			}
		}
		if dict.Len() > 0 {
			line(depth)
		}
		w.WriteByte('}')
	default:
		return fmt.Errorf("tojson of %s: want a value of JSON", v)
	}
	return nil
}

func (w *jsonWriter) text(s string) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(s) // a string cannot fail
	// Go escapes two characters that Python does not.
	quoted := strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029").Replace(strings.TrimSuffix(b.String(), "\n"))
	for _, r := range quoted {
		switch {
		case !w.ascii || r < 0x80:
			w.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(w, `\u%04x`, r)
		default:
			r -= 0x10000
			fmt.Fprintf(w, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
		}
	}
}
