package jobenv

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseErrorFile(t *testing.T) {
	for text, want := range map[string]ErrorFile{
		`{"message": {"message": "boom", "extraInfo": {"py_callstack": "at f", "timestamp": "1700000000.25"}}}`: {
			Message: "boom", Callstack: "at f", Time: time.UnixMilli(1_700_000_000_250)},
		`{"message": {"message": "boom", "extraInfo": {"timestamp": 1700000000}}}`: {Message: "boom", Time: time.Unix(1_700_000_000, 0)},
		`{"message": {"message": "boom"}}`:                                         {Message: "boom"},
		`{"message": "plain"}`:                                                     {Message: "plain"},
		`{"message": {"message": "boom", "extraInfo": {"timestamp": "NaN"}}}`:      {Message: "boom"},
		`{"message": {"message": "boom", "extraInfo": {"timestamp": "-1"}}}`:       {Message: "boom"},
		`{"message": {"message": "boom", "extraInfo": {"caused_by": "2"}}}`:        {Message: "boom", CausedBy: new(2)},
		`{"message": {"message": "boom", "extraInfo": {"interrupted": "true"}}}`:   {Message: "boom", Interrupted: true},
		`{"message": {"message": "boom", "extraInfo": {"caused_by": "x"}}}`:        {Message: "boom"},
		`{"message": {"message": "boom", "extraInfo": {"caused_by": "-1"}}}`:       {Message: "boom"},
	} {
		got, err := parseErrorFile([]byte(text))
		if err != nil || got.Message != want.Message || got.Callstack != want.Callstack || !got.Time.Equal(want.Time) || !reflect.DeepEqual(got.CausedBy, want.CausedBy) {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{`{}`, `[]`, `nonsense`, `{"message": 7}`, `{"message": {"message": 7}}`} {
		if got, err := parseErrorFile([]byte(text)); err == nil {
			t.Errorf("%s is read as %+v", text, got)
		}
	}
}

func TestReadErrorFile(t *testing.T) {
	dir := t.TempDir()
	if got, err := ReadErrorFile(filepath.Join(dir, "none")); got != nil || err != nil {
		t.Errorf("a missing file is %v, %v", got, err)
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadErrorFile(bad); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("the error of a bad file is %v", err)
	}
}

// The launcher reads what a worker writes, also if the folder is gone.
func TestWriteErrorFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gone", "error.json")
	for _, e := range []ErrorFile{{Message: "boom", Callstack: "at f"}, {Message: "rank 2 lost", CausedBy: new(2)}, {Message: "signal", Interrupted: true}} {
		t.Setenv("TORCHELASTIC_ERROR_FILE", "")
		if err := e.Write(); err != nil {
			t.Error(err)
		}
		t.Setenv("TORCHELASTIC_ERROR_FILE", path)
		before := time.Now().Add(-time.Millisecond)
		if err := e.Write(); err != nil {
			t.Fatal(err)
		}
		got, err := ReadErrorFile(path)
		if err != nil || got.Time.Before(before) {
			t.Fatalf("got %+v, %v", got, err)
		}
		if got.Time = (time.Time{}); !reflect.DeepEqual(*got, e) {
			t.Errorf("got %+v, want %+v", *got, e)
		}
	}
}
