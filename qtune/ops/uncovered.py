"""What of torch stays float, and why: every overridable function that no operator takes.

Names stand without their module and without the underscore of their in-place form; a name covers
``torch.x``, ``torch.nn.functional.x``, ``torch.Tensor.x`` and ``torch.Tensor.x_`` alike. The table
of the documentation is made from this one, and a test compares it with torch's own list.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNCOVERED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "makes a constant from sizes, which export folds": _names(
            "cartesian_prod combinations empty_like full_like meshgrid ones_like zeros_like"
        ),
        "asks for a property of the tensor, no data": _names(
            "data_ptr const_data_ptr dim dim_order element_size equal get_device is_coalesced "
            "is_complex is_conj is_contiguous is_distributed is_floating_point is_inference is_neg "
            "is_nonzero is_pinned is_same_size is_set_to is_shared is_signed item ndimension "
            "nelement numel numpy qscheme size storage storage_offset storage_type sym_float "
            "sym_ite sym_max sym_min sym_not sym_sqrt sym_sum tolist type untyped_storage"
        ),
        "the size of its result depends on data": _names(
            "argwhere bincount masked_select nonzero nonzero_static unique unique_consecutive"
        ),
        "writes to computed places, in an order that matters; use where or index_copy": _names(
            "as_strided as_strided_scatter diagonal_scatter fill_diagonal index_add index_reduce "
            "map map2 masked_scatter put scatter scatter_add scatter_reduce apply set"
        ),
        "fills a tensor; assign with x[...] = value": _names("copy fill zero resize resize_as"),
        "in place a comparison gives numbers, no mask": _names(
            "eq ge greater greater_equal gt le less less_equal lt ne not_equal"
        ),
        "asks for NaN and infinities, which codes don't have": _names(
            "isfinite isinf isnan isneginf isposinf isreal nan_to_num nanmean nanmedian "
            "nanquantile nansum"
        ),
        "a function of two operands that is neither exact nor a table": _names(
            "allclose arctan2 atan2 cdist copysign cosine_similarity cross dist float_power fmax "
            "fmin gcd heaviside hypot igamma igammac isclose isin kron lcm ldexp logaddexp "
            "logaddexp2 nextafter pairwise_distance pdist renorm xlogy xlog1py"
        ),
        "a product of many, or a running one that isn't a sum": _names(
            "cummax cummin cumprod cumulative_trapezoid logcumsumexp prod trapezoid trapz"
        ),
        "an order statistic; topk and sort have an integer form": _names(
            "histc histogram histogramdd kthvalue median mode msort quantile"
        ),
        "a function outside the vendor's list; SegmentLUT makes a table of any": _names(
            "airy_ai angle bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t "
            "chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w digamma entr "
            "erfcx erfinv gammainc gammaincc gammaln hermite_polynomial_h hermite_polynomial_he i0 "
            "i0e i1 i1e laguerre_polynomial_l legendre_polynomial_p lgamma log_ndtr "
            "modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 "
            "multigammaln mvlgamma ndtr ndtri polygamma psi scaled_modified_bessel_k0 "
            "scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t "
            "shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
            "shifted_chebyshev_polynomial_w signbit spherical_bessel_j0 zeta"
        ),
        "complex numbers and Fourier transforms": _names(
            "complex conj conj_physical fft fft2 fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn "
            "ifftshift ihfft ihfft2 ihfftn imag irfft irfft2 irfftn istft polar real resolve_conj "
            "resolve_neg rfft rfft2 rfftn stft view_as_complex view_as_real"
        ),
        "linear algebra beyond products": _names(
            "block_diag cholesky cholesky_ex cholesky_inverse cholesky_solve cond corrcoef cov det "
            "diag diag_embed diagflat eig eigh eigvals eigvalsh geqrf householder_product inv "
            "inv_ex inverse ldl_factor ldl_factor_ex ldl_solve lobpcg logdet lstsq lu lu_factor "
            "lu_factor_ex lu_solve lu_unpack matrix_exp matrix_norm matrix_power matrix_rank "
            "norm_except_dim nuclear_norm orgqr ormqr pca_lowrank pinv pinverse qr slogdet solve "
            "solve_ex solve_triangular svd svd_lowrank svdvals tensorinv tensorsolve trace "
            "triangular_solve vander vecdot"
        ),
        "arithmetic on bits and whole numbers": _names(
            "bitwise_left_shift bitwise_right_shift bucketize count_nonzero diff frexp gradient "
            "hash_tensor searchsorted sum_to_size unravel_index"
        ),
        "a loss; it belongs to training": _names(
            "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss "
            "cross_entropy ctc_loss gaussian_nll_loss hinge_embedding_loss huber_loss kl_div "
            "l1_loss linear_cross_entropy margin_ranking_loss mse_loss multi_margin_loss "
            "multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss "
            "smooth_l1_loss soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss"
        ),
        "random; it belongs to training": _names(
            "bernoulli binomial cauchy exponential feature_dropout fractional_max_pool2d "
            "fractional_max_pool2d_with_indices fractional_max_pool3d "
            "fractional_max_pool3d_with_indices geometric gumbel_softmax log_normal multinomial "
            "native_dropout normal poisson random uniform"
        ),
        "a layer without an integer form; replace it by one that has": _names(
            "adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices "
            "adaptive_max_pool3d_with_indices conv_tbc embedding_bag fold "
            "lp_pool3d max_pool1d_with_indices max_pool2d_with_indices "
            "max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d"
        ),
        "moves data to another dtype, device or layout; do it outside of the model": _names(
            "bfloat16 cdouble cfloat chalf cpu cuda dequantize double half ipu mtia pin_memory "
            "share_memory to_dense to_mkldnn to_sparse xpu autocast"
        ),
        "a form that torch uses inside; call the function or the layer itself": _names(
            "adaptive_max_pool1d affine_grid_generator alias_copy alpha_dropout as_strided_copy "
            "batch_norm_backward_elemt "
            "batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats "
            "batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats "
            "choose_qparams_optimized convolution detach_copy diagonal_copy expand_copy "
            "fake_quantize_per_channel_affine fake_quantize_per_tensor_affine "
            "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation "
            "fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation "
            "fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16 "
            "fbgemm_pack_quantized_matrix frobenius_norm fused_moving_avg_obs_fake_quant "
            "feature_alpha_dropout std_mean var_mean "
            "grid_sampler grid_sampler_2d grid_sampler_3d index int_repr miopen_batch_norm "
            "miopen_convolution miopen_convolution_add_relu miopen_convolution_relu "
            "miopen_convolution_transpose miopen_depthwise_convolution miopen_rnn module_load "
            "narrow_copy native_batch_norm native_group_norm native_layer_norm native_norm "
            "permute_copy q_per_channel_axis q_per_channel_scales q_per_channel_zero_points "
            "q_scale q_zero_point quantize_per_channel quantize_per_tensor "
            "quantize_per_tensor_dynamic quantized_batch_norm quantized_gru_cell "
            "quantized_lstm_cell quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d "
            "quantized_rnn_relu_cell quantized_rnn_tanh_cell select_copy slice_copy slice_inverse "
            "split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy "
            "unfold_copy unsqueeze_copy view_as_complex_copy view_as_real_copy view_copy"
        ),
        "sparse tensors": _names(
            "ccol_indices ccol_indices_copy coalesce col_indices col_indices_copy crow_indices "
            "crow_indices_copy dense_dim hspmm indices indices_copy row_indices row_indices_copy "
            "smm sparse_dim sparse_mask sparse_resize sparse_resize_and_clear sspaddmm "
            "resize_as_sparse values values_copy"
        ),
        "autograd": _names(
            "backward record_stream register_hook register_post_accumulate_grad_hook requires_grad "
            "retain_grad"
        ),
    }
)
"""Reason -> names."""


def reason_of(name: str) -> str | None:
    """Why ``name`` (as in :data:`UNCOVERED`) stays float, ``None`` if it isn't listed."""
    return next((reason for reason, names in UNCOVERED.items() if name in names), None)


def no_operator(spelling: str) -> str:
    """Say that no operator takes a function, and why if that is known.

    >>> no_operator("torch.fft.rfft")
    'no operator of the registry fits torch.fft.rfft: complex numbers and Fourier transforms'
    """
    reason = reason_of(spelling.rpartition(".")[2].rstrip("_"))
    text = f"no operator of the registry fits {spelling}"
    return text if reason is None else f"{text}: {reason}"
