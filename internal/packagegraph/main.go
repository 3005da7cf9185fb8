// Command packagegraph prints which package of this module imports which, highest first, so
// that each name on the right of an arrow has its own line further down. An import that another
// import of the same line implies is left out. docs/design.md holds the output:
//
//	go run ./internal/packagegraph
//
// Programs of bench, test and examples are left out.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const module = "github.com/goddp/goddp/"

func main() {
	imports, err := readImports()
	if err != nil {
		fmt.Fprintln(os.Stderr, "packagegraph:", err)
		os.Exit(1)
	}
	fmt.Print(format(imports))
}

// readImports returns the module's own imports of each of its packages.
func readImports() (map[string][]string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd, err, &stderr)
	}
	imports := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		var direct []string
		for _, path := range strings.Fields(line) {
			if name, ok := strings.CutPrefix(path, module); ok && !isLeftOut(name) {
				direct = append(direct, name)
			}
		}
		if len(direct) > 0 && strings.HasPrefix(line, module+direct[0]+" ") {
			imports[direct[0]] = direct[1:]
		}
	}
	return imports, nil
}

// isLeftOut reports whether the graph leaves a package out: a program of bench, test or
// examples, or a helper of tests.
func isLeftOut(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{"bench", "test", "examples"}, top) || strings.HasSuffix(name, "test") || name == "internal/packagegraph"
}

// format returns a line for each package: its name and what it imports.
func format(imports map[string][]string) string {
	levels := map[string]int{}
	var level func(name string) int
	level = func(name string) int {
		if n, ok := levels[name]; ok {
			return n
		}
		n := 0
		for _, below := range imports[name] {
			n = max(n, level(below)+1)
		}
		levels[name] = n
		return n
	}
	names := make([]string, 0, len(imports))
	for name := range imports {
		level(name)
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if levels[a] != levels[b] {
			return levels[b] - levels[a]
		}
		return strings.Compare(a, b)
	})
	var text strings.Builder
	for _, name := range names {
		direct := reduce(name, imports)
		if len(direct) == 0 {
			fmt.Fprintln(&text, name)
			continue
		}
		wrap(&text, name+" →", direct)
	}
	return text.String()
}

// reduce returns the imports of a package that none of its other imports reaches.
func reduce(name string, imports map[string][]string) (direct []string) {
	for _, path := range imports[name] {
		implied := slices.ContainsFunc(imports[name], func(other string) bool {
			return other != path && reaches(other, path, imports)
		})
		if !implied {
			direct = append(direct, path)
		}
	}
	slices.Sort(direct)
	return direct
}

func reaches(from, to string, imports map[string][]string) bool {
	return from == to || slices.ContainsFunc(imports[from], func(below string) bool { return reaches(below, to, imports) })
}

// lineWidth is the largest width of a line.
const lineWidth = 100

// wrap writes first and then words, separated by commas, in lines of at most lineWidth.
func wrap(text *strings.Builder, first string, words []string) {
	line := first
	for i, name := range words {
		if i < len(words)-1 {
			name += ","
		}
		if len([]rune(line))+1+len(name) > lineWidth {
			fmt.Fprintln(text, line)
			line = "   "
		}
		line += " " + name
	}
	fmt.Fprintln(text, line)
}
