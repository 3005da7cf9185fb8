// Command exported prints how many identifiers each package of this module exports: functions,
// methods, types, struct fields, and variables with constants. Methods of exported types and of
// exported interfaces count. Commands, internal packages, examples and modules below this one are
// left out.
//
//	go run ./internal/testkit/exported          # a line for each package, and the total
//	go run ./internal/testkit/exported -max 550 # exits with 1 if functions, methods and types exceed 550
//	go run ./internal/testkit/exported device   # also lists the identifiers of package device
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	limit := flag.Int("max", 0, "exit with 1 if functions, methods and types exceed this number; 0: no limit")
	flag.Parse()
	total, err := run(os.Stdout, ".", flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "exported:", err)
		os.Exit(2)
	}
	if *limit > 0 && total > *limit {
		fmt.Fprintf(os.Stderr, "exported: %d functions, methods and types are exported, want at most %d\n", total, *limit)
		os.Exit(1)
	}
}

// kind is a kind of identifier.
type kind int

const (
	function kind = iota
	method
	typ
	field
	variable
	kinds
)

func (k kind) String() string {
	return [...]string{"func", "method", "type", "field", "var"}[k]
}

// identifiers are the exported identifiers of a package: "Type.Method" stands for a method,
// "Type.Field" for a field.
type identifiers map[string]kind

func (ids identifiers) counts() (n [kinds]int) {
	for _, k := range ids {
		n[k]++
	}
	return n
}

// surface returns the number of functions, methods and types in counts.
func surface(n [kinds]int) int { return n[function] + n[method] + n[typ] }

// run prints the counts of the packages below root, and the identifiers of the packages in
// listed. It returns the number of functions, methods and types.
func run(w io.Writer, root string, listed []string) (int, error) {
	packages, err := read(root)
	if err != nil {
		return 0, err
	}
	var total [kinds]int
	line := func(name string, n [kinds]int) {
		fmt.Fprintf(w, "%-28s func %3d  method %3d  type %3d  = %4d   field %3d  var %3d\n",
			name, n[function], n[method], n[typ], surface(n), n[field], n[variable])
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		n := packages[name].counts()
		line(name, n)
		for k := range total {
			total[k] += n[k]
		}
		if slices.Contains(listed, name) {
			for _, id := range slices.Sorted(maps.Keys(packages[name])) {
				fmt.Fprintf(w, "    %-6v %s\n", packages[name][id], id)
			}
		}
	}
	line("total", total)
	return surface(total), nil
}

// leftOut are names of folders that hold no packages for users.
var leftOut = []string{"internal", "testdata", "examples", "example", "bench", "test", "cmd"}

// read returns the exported identifiers of each package below root by the package's folder.
func read(root string) (map[string]identifiers, error) {
	packages := map[string]identifiers{}
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path == root {
				return nil
			}
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if err == nil || slices.Contains(leftOut, d.Name()) || d.Name()[0] == '.' {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil || f.Name.Name == "main" {
			return err
		}
		name, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if packages[name] == nil {
			packages[name] = identifiers{}
		}
		for _, decl := range f.Decls {
			packages[name].add(decl)
		}
		return nil
	})
	return packages, err
}

// add adds the exported identifiers of a declaration. A second declaration of a name, for
// another system, adds nothing.
func (ids identifiers) add(decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		switch {
		case !decl.Name.IsExported():
		case decl.Recv == nil:
			ids[decl.Name.Name] = function
		default:
			if t := receiver(decl.Recv.List[0].Type); ast.IsExported(t) {
				ids[t+"."+decl.Name.Name] = method
			}
		}
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				ids.addType(spec)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					if name.IsExported() {
						ids[name.Name] = variable
					}
				}
			}
		}
	}
}

// addType adds a type with its fields, or with its methods if it is an interface.
func (ids identifiers) addType(spec *ast.TypeSpec) {
	if !spec.Name.IsExported() {
		return
	}
	ids[spec.Name.Name] = typ
	var members *ast.FieldList
	var k kind
	switch t := spec.Type.(type) {
	case *ast.StructType:
		members, k = t.Fields, field
	case *ast.InterfaceType:
		members, k = t.Methods, method
	default:
		return
	}
	for _, m := range members.List {
		for _, name := range m.Names {
			if name.IsExported() {
				ids[spec.Name.Name+"."+name.Name] = k
			}
		}
	}
}

// receiver returns the name of a receiver's type.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}
