package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	got := format(map[string][]string{"top": {"middle", "leaf"}, "middle": {"leaf"}, "leaf": nil, "alone": nil})
	if want := "top → middle\nmiddle → leaf\nalone\nleaf\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// docs/design.md holds what the command prints.
func TestDesignPageHasTheGraph(t *testing.T) {
	imports, err := readImports()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	if graph := format(imports); !strings.Contains(string(page), "```\n"+graph+"```\n") {
		t.Errorf("docs/design.md has another graph than go run ./internal/packagegraph prints:\n%s", graph)
	}
}
