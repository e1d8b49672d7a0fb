package runtime

// Description says what a container was created from, as far as its engine
// still knows. If the database is lost, the daemon rebuilds records from it.
type Description struct {
	// ContainerSpec leaves out the environment and the healthcheck that come from
	// the image. It has neither Limits nor Security.
	ContainerSpec
	// Image is what the container was created from.
	Image Image
	// ImageName is a reference to the image, or its id if it no longer has a name.
	ImageName string
}
