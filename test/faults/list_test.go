package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Every fault of the list fits the tree, so that the list stays true when code moves.
func TestFaultsFitTheTree(t *testing.T) {
	faults, err := read("faults.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(faults) < 48 {
		t.Errorf("%d faults, want 48", len(faults))
	}
	for _, f := range faults {
		source, err := os.ReadFile(filepath.Join("../..", f.file))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.apply(string(source)); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
}
