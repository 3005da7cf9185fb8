package comm_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
)

// If OpenBLAS is missing, only one rank of the host logs a warning. The warning says how to
// install OpenBLAS.
func TestMissingOpenBLASIsLoggedOnce(t *testing.T) {
	t.Setenv("GODDP_DEVICE", "cpu")
	t.Setenv("GODDP_OPENBLAS", "/nonexistent/libopenblas.so")
	var log bytes.Buffer
	groups, err := comm.Local(3, &comm.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, pg := range groups {
		pg.Close()
	}
	if got := log.String(); strings.Count(got, "pure Go") != 1 || !strings.Contains(got, "remedy=") {
		t.Errorf("logged %q, want one warning with a remedy", got)
	}
}
