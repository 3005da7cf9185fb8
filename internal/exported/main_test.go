package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCountsOfAPackage(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"shop/shop.go": `package shop
type Shop struct { Name, Town string; open bool }
type Seller interface { Sell() error; rest() }
type Box[T any] []T
type hidden struct{}
const Limit, limit = 3, 4
var Default Shop
func New() *Shop { return nil }
func help() {}
func (s *Shop) Open() {}
func (Box[T]) Len() int { return 0 }
func (hidden) Open() {}
`,
		"shop/shop_linux.go":           "package shop\nfunc Page() int { return 1 }\n",
		"shop/shop_other.go":           "package shop\nfunc Page() int { return 2 }\n",
		"shop/shop_test.go":            "package shop\nfunc Tested() {}\n",
		"shop/internal/till/till.go":   "package till\nfunc Count() {}\n",
		"examples/buy/lib.go":          "package lib\nfunc Buy() {}\n",
		"tool/main.go":                 "package main\nfunc Tool() {}\nfunc main() {}\n",
		"other/go.mod":                 "module other\n",
		"other/other.go":               "package other\nfunc Other() {}\n",
		"shop/testdata/broken/file.go": "package broken\nfunc {",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	n, err := run(&out, root, []string{"shop"})
	if err != nil {
		t.Fatal(err)
	}
	const counts = "func   2  method   3  type   3  =    8   field   2  var   2\n"
	const want = "shop                         " + counts + `    type   Box
    method Box.Len
    var    Default
    var    Limit
    func   New
    func   Page
    type   Seller
    method Seller.Sell
    type   Shop
    field  Shop.Name
    method Shop.Open
    field  Shop.Town
total                        ` + counts
	if n != 8 || out.String() != want {
		t.Errorf("%d functions, methods and types in\n%swant 8 in\n%s", n, &out, want)
	}
}
