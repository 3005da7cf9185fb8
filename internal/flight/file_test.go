package flight

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/backend"
)

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	r := newRecorder(t, 10)
	g := r.Group("default", 1, 4)
	g.Begin(allReduce(1), at(0).UnixNano()).Ended(at(2), true)
	twoFromHere(g)
	g.Begin(&backend.Call{Seq: 3, Kind: backend.Barrier}, at(1).UnixNano())
	g.Begin(&backend.Call{Seq: 1, Kind: backend.Recv, Root: 2, Dst: allReduce(0).Dst}, at(1).UnixNano())
	d := r.Dump()
	d.Fate = "was killed by SIGKILL"
	for range 2 { // the second replaces the first
		path, err := d.Write(dir)
		if err != nil {
			t.Fatal(err)
		}
		if path != filepath.Join(dir, "rank_1.json") {
			t.Errorf("written to %s", path)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
	got, err := ReadDir(dir)
	if err != nil || len(got) != 1 {
		t.Fatalf("got %d dumps, %v", len(got), err)
	}
	d.Taken, got[0].Taken = d.Taken.UTC(), got[0].Taken.UTC()
	if !reflect.DeepEqual(got[0], d) {
		t.Errorf("read\n%+v, written\n%+v", got[0], d)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

func TestBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	for _, dir := range []string{dir, filepath.Join(dir, "none")} {
		if _, err := ReadDir(dir); !errors.Is(err, ErrNoDumps) || !strings.Contains(err.Error(), dir) {
			t.Errorf("an empty or missing folder: %v", err)
		}
	}
	if _, err := newRecorder(t, 10).Dump().Write(dir); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"rank_0.json": "{",
		"rank_2.json": `{"version": 99}`,
		"rank_3.json": `{"version": 3, "rank": 7, "world_size": 2}`,
		"rank_4.json": `{"version": 3, "world_size": 2, "records": [{"call": {"kind": "Nonsense"}}]}`,
		"rank_5.json": `{"version": 3, "rank": 5, "world_size": 2000000000}`,
		"rank_6.json": `{"version": 3, "world_size": 2, "awaited": [2000000000]}`,
		"notes.json":  "not ours",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "rank_7.json"), 0o600); err != nil { // without a writer, so that opening it would block
		t.Fatal(err)
	}
	dumps, err := ReadDir(dir)
	if len(dumps) != 1 || dumps[0].Rank != 1 {
		t.Errorf("%d dumps", len(dumps))
	}
	for _, want := range []string{"rank_0.json", "rank_2.json: a dump of version 99", "rank_3.json", "rank 7 of 2", "Nonsense", "rank 5 of 2000000000", "waited for rank 2000000000", "rank_7.json is not a regular file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "notes") || errors.Is(err, ErrNoDumps) {
		t.Errorf("error %v is about another file", err)
	}
}
