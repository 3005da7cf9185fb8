package comm_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit/commtest"
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

// closable is a device on which Alloc fails once it is closed, as on a GPU.
type closable struct {
	device.Device
	closed bool
}

func (d *closable) Alloc(n int) (device.Buffer, error) {
	if d.closed {
		return device.Buffer{}, errors.New("the device is closed")
	}
	return d.Device.Alloc(n)
}

// A group's device is often closed with the group. The error of a later call is still ErrClosed.
func TestValuesOfAClosedGroupOnAClosedDevice(t *testing.T) {
	dev := &closable{Device: cpu.New(nil)}
	commtest.OnDevices(t, []device.Device{dev}, nil, func(pg *comm.ProcessGroup) error {
		if err := pg.Close(); err != nil {
			return err
		}
		dev.closed = true
		_, ints := comm.AllGatherInts(t.Context(), pg, []int64{1})
		_, object := comm.AllGatherObject(t.Context(), pg, "object")
		for name, err := range map[string]error{"AllGatherInts": ints, "AllGatherObject": object} {
			if !errors.Is(err, comm.ErrClosed) {
				t.Errorf("%s returned %v, want ErrClosed", name, err)
			}
		}
		return nil
	})
}
