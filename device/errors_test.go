package device

import "testing"

func TestOutOfMemoryText(t *testing.T) {
	for want, e := range map[string]OutOfMemoryError{
		"cpu: out of device memory: asked for 100000.00 GiB, 1.50 MiB in use, 1000 bytes free": {"cpu", 100_000 << 30, 3 << 19, 1000},
		"cpu: out of device memory: asked for 1.00 GiB, 0 bytes in use":                        {"cpu", 1 << 30, 0, -1},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
