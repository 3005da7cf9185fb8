package vocabulary

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// split returns the words of an identifier, in lower case: those of oneShotSum are one, shot and sum.
func split(identifier string) (words []string) {
	runes := []rune(identifier)
	start := 0
	for i := 1; i <= len(runes); i++ {
		if i == len(runes) || runes[i] == '_' ||
			unicode.IsUpper(runes[i]) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			if part := strings.Trim(string(runes[start:i]), "_"); part != "" {
				words = append(words, strings.ToLower(part))
			}
			start = i
		}
	}
	return words
}

// find returns the entry of the list that forbids an identifier, "" if none does.
func find(identifier string) string {
	if _, ok := names[identifier]; ok {
		return identifier
	}
	all := " " + strings.Join(split(identifier), " ") + " "
	for entry := range phrases {
		if strings.Contains(all, " "+entry+" ") {
			return entry
		}
	}
	return ""
}

// declared returns the identifiers that a file declares.
func declared(file *ast.File) (ids []*ast.Ident) {
	fields := func(list *ast.FieldList) {
		if list != nil {
			for _, f := range list.List {
				ids = append(ids, f.Names...)
			}
		}
	}
	exprs := func(list ...ast.Expr) {
		for _, e := range list {
			if id, ok := e.(*ast.Ident); ok {
				ids = append(ids, id)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			ids = append(ids, n.Name)
			fields(n.Recv)
		case *ast.FuncType:
			fields(n.TypeParams)
			fields(n.Params)
			fields(n.Results)
		case *ast.StructType:
			fields(n.Fields)
		case *ast.InterfaceType:
			fields(n.Methods)
		case *ast.TypeSpec:
			ids = append(ids, n.Name)
			fields(n.TypeParams)
		case *ast.ValueSpec:
			ids = append(ids, n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				exprs(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				exprs(n.Key, n.Value)
			}
		case *ast.LabeledStmt:
			ids = append(ids, n.Label)
		}
		return true
	})
	return ids
}

// The lists forbid no identifier and no file name of the tree.
func TestNoIdentifierIsForbidden(t *testing.T) {
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "build" || entry.Name() == "testdata"):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if f := find(strings.TrimSuffix(filepath.Base(path), ".go")); f != "" {
			t.Errorf("%s: the file's name has %q, better: %s", rel, f, instead(f))
		}
		for _, id := range declared(file) {
			if f := find(id.Name); f != "" {
				t.Errorf("%s:%d: %s has %q, better: %s", rel, fset.Position(id.Pos()).Line, id.Name, f, instead(f))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSplitFindsTheWordsOfAnIdentifier(t *testing.T) {
	for id, want := range map[string]string{
		"oneShotSum": "one shot sum", "NCCLGroup": "nccl group", "letGo": "let go", "x": "x", "keep_last": "keep last", "ID": "id", "aB": "a b",
	} {
		if got := strings.Join(split(id), " "); got != want {
			t.Errorf("%s has the words %q, want %q", id, got, want)
		}
	}
}
