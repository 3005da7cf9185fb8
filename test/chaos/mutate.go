package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// overlay writes the mutated file to dir, and next to it the JSON that `go build -overlay` takes.
// It returns the path of the JSON.
func (m *mutant) overlay(root, dir string) (string, error) {
	source, err := m.apply(root)
	if err != nil {
		return "", err
	}
	mutated := filepath.Join(dir, "mutated.go")
	if err := os.WriteFile(mutated, []byte(source), 0o644); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, m.file): mutated}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o644)
}

// apply returns the mutated source of the mutant's file.
func (m *mutant) apply(root string) (string, error) {
	path := filepath.Join(root, m.file)
	source, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("mutant %q: %w", m.name, err)
	}
	start, end, err := findFunction(path, source, m.function)
	if err != nil {
		return "", fmt.Errorf("mutant %q: %w", m.name, err)
	}
	body := string(source[start:end])
	if n := strings.Count(body, m.old); n != 1 {
		return "", fmt.Errorf("mutant %q: function %s in %s contains %q %d times, want once", m.name, m.function, m.file, m.old, n)
	}
	return string(source[:start]) + strings.Replace(body, m.old, m.new, 1) + string(source[end:]), nil
}

// findFunction returns the offsets at which a function begins and ends in a source file. The name
// of a method is "Type.Method".
func findFunction(path string, source []byte, name string) (start, end int, err error) {
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, path, source, parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, err
	}
	file := positions.File(parsed.FileStart)
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && functionName(f) == name {
			return file.Offset(f.Pos()), file.Offset(f.End()), nil
		}
	}
	return 0, 0, fmt.Errorf("there is no function %s in %s", name, path)
}

// functionName returns "F" for a function and "Type.Method" for a method.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	if generic, ok := receiver.(*ast.IndexExpr); ok {
		receiver = generic.X
	}
	if named, ok := receiver.(*ast.Ident); ok {
		return named.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
