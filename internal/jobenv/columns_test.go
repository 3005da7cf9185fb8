package jobenv

import (
	"os"
	"testing"
)

// The columns are those of golaunch's pipe, not of another one in a shell that inherits the variable.
func TestColumns(t *testing.T) {
	_, of, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer of.Close()
	_, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	t.Setenv(ColumnsVar, Columns(27, of))
	for f, want := range map[*os.File]int{of: 27, other: 0, file: 0} {
		if got := ColumnsOf(f); got != want {
			t.Errorf("%d columns, want %d", got, want)
		}
	}
	t.Setenv(ColumnsVar, "0")
	if got := ColumnsOf(of); got != 0 {
		t.Errorf("%d columns, want 0", got)
	}
}
