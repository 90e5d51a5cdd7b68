// The namespace of the ops: torch.ops.scaled_mm. A macro, so that a vendored copy can rename it.
#pragma once

#ifndef SCALED_MM_NAMESPACE
#define SCALED_MM_NAMESPACE scaled_mm
#endif
