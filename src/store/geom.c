typedef int sl_placeholder_geom;
