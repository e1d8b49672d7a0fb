package server

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Doctor compares records, engine and files.
func (s *Server) Doctor(ctx context.Context, req *agboxv1.DoctorRequest) (*agboxv1.DoctorResponse, error) {
	return s.Examiner.Examine(ctx, req.GetFix())
}
