package main

import (
	"fmt"
	"os"
	"strings"
)

// fault is a slip in the product's code.
type fault struct {
	name     string // area/what
	file     string // relative to the module's root
	why      string // what goes wrong for a user
	tests    []string
	old, new string
}

// read reads a list of faults. Each begins with a line "== NAME"; lines "file:", "why:" and "tests:" follow, and the old and
// the new text between <<<<, ==== and >>>>.
func read(path string) (faults []fault, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for block := range strings.SplitSeq("\n"+string(data), "\n== ") {
		if strings.TrimSpace(block) == "" {
			continue
		}
		head, body, ok := strings.Cut(block, "\n<<<<\n")
		old, rest, ok2 := strings.Cut(body, "\n====\n")
		text, _, ok3 := strings.Cut("\n"+rest, "\n>>>>")
		if !ok || !ok2 || !ok3 {
			return nil, fmt.Errorf("%s: %q lacks <<<<, ==== or >>>>", path, head)
		}
		f := fault{old: old + "\n", new: strings.TrimPrefix(text+"\n", "\n")}
		for i, line := range strings.Split(head, "\n") {
			key, value, _ := strings.Cut(line, ": ")
			switch {
			case i == 0:
				f.name = line
			case key == "file":
				f.file = value
			case key == "why":
				f.why = value
			case key == "tests":
				f.tests = strings.Fields(value)
			default:
				return nil, fmt.Errorf("%s: %s: line %q", path, f.name, line)
			}
		}
		if f.file == "" || f.why == "" || len(f.tests) == 0 {
			return nil, fmt.Errorf("%s: %s lacks file, why or tests", path, f.name)
		}
		faults = append(faults, f)
	}
	return faults, nil
}

// apply returns source with the fault in it.
func (f fault) apply(source string) (string, error) {
	if n := strings.Count(source, f.old); n != 1 {
		return "", fmt.Errorf("%s has the old text %d times, want once", f.file, n)
	}
	return strings.Replace(source, f.old, f.new, 1), nil
}
