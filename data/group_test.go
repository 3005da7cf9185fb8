package data_test

import (
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
)

var _ data.Group = (*comm.ProcessGroup)(nil)
